"""Texts in units of a duplex session, over the wire: which model takes which, and how the others refuse."""

import json
from dataclasses import replace

import pytest

from antiphon.contract import Reason
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.checkpoints.location import find
from inference_service.families import antiphon_mini
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import StandaloneText, TextPurpose, UnitInput
from inference_service.models.config import parse_config
from tests.inference_service.conftest import Served, SessionOf
from tests.inference_service.support.caller import duplex
from tests.support.scripted_engine import INFO, ScriptedEngine

READING = replace(INFO, text_purposes=frozenset({TextPurpose.INSTRUCTIONS, TextPurpose.THINKING}))
PURPOSES = (
    pb.TEXT_PURPOSE_INSTRUCTIONS,
    pb.TEXT_PURPOSE_THINKING,
    pb.TEXT_PURPOSE_COMMENTARY,
    pb.TEXT_PURPOSE_TOOL_RESULT,
)


def reading(purpose: pb.TextPurpose, text: str = "The user is called Ada.") -> pb.DuplexInput:
    """A silent unit that something is read before."""
    unit = duplex()
    unit.texts.add(purpose=purpose, text=text)
    return unit


@pytest.mark.parametrize("info", [INFO, READING])
async def test_ready_lists_text_purposes_of_model(served: Served, info: ModelInfo) -> None:
    async with served(ScriptedEngine(info=info)) as new_caller:
        ready = await (await new_caller().open()).configure()
        assert list(ready.text_purposes) == [
            p for p, purpose in zip(PURPOSES, TextPurpose, strict=True) if purpose in info.text_purposes
        ]


async def test_a_text_reaches_the_engine_with_its_unit(session_of: SessionOf) -> None:
    engine = ScriptedEngine(info=READING)
    async with session_of(engine) as caller:
        await caller.unit(1, reading(pb.TEXT_PURPOSE_THINKING))
    content = engine.session.given[1]
    assert isinstance(content, UnitInput)
    assert content.texts == (StandaloneText(TextPurpose.THINKING, "The user is called Ada."),)


@pytest.mark.parametrize("purpose", PURPOSES)
async def test_text_for_other_purpose_is_refused(session_of: SessionOf, purpose: pb.TextPurpose) -> None:
    async with session_of(ScriptedEngine()) as caller:
        refused = await caller.unit(1, reading(purpose))
        assert (refused.prefill.error.reason, refused.prefill.error.field) == (
            Reason.CONTENT_UNSUPPORTED,
            "duplex.texts[0]",
        )
        assert refused.done.end == pb.UNIT_END_FAILED
        assert (await caller.unit(2)).done.end == pb.UNIT_END_LISTEN


@pytest.mark.parametrize(
    ("unit", "field"),
    [
        (reading(pb.TEXT_PURPOSE_UNSPECIFIED), "duplex.texts[0].purpose"),
        (reading(99), "duplex.texts[0].purpose"),  # type: ignore[arg-type]
        (reading(pb.TEXT_PURPOSE_THINKING, ""), "duplex.texts[0].text"),
    ],
)
async def test_incomplete_text_is_refused(session_of: SessionOf, unit: pb.DuplexInput, field: str) -> None:
    async with session_of(ScriptedEngine(info=READING)) as caller:
        refused = await caller.unit(1, unit)
        assert (refused.prefill.error.reason, refused.prefill.error.field) == (Reason.PARAMS_INVALID, field)


def test_the_shipped_model_reads_nothing_while_it_listens() -> None:
    config = parse_config(json.loads((find("antiphon-mini") / "config.json").read_text()))
    assert antiphon_mini.model_info(config).text_purposes == frozenset()
