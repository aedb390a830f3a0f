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


@pytest.mark.parametrize(
    ("info", "unit", "reason", "field"),
    [
        *((INFO, reading(purpose), Reason.CONTENT_UNSUPPORTED, "") for purpose in PURPOSES),
        (READING, reading(pb.TEXT_PURPOSE_UNSPECIFIED), Reason.PARAMS_INVALID, ".purpose"),
        (READING, reading(99), Reason.PARAMS_INVALID, ".purpose"),  # type: ignore[arg-type]
        (READING, reading(pb.TEXT_PURPOSE_THINKING, ""), Reason.PARAMS_INVALID, ".text"),
    ],
    ids=[*map(pb.TextPurpose.Name, PURPOSES), "no purpose", "unknown purpose", "no text"],
)
async def test_unsupported_or_incomplete_text_fails_its_unit_alone(
    session_of: SessionOf, info: ModelInfo, unit: pb.DuplexInput, reason: Reason, field: str
) -> None:
    async with session_of(ScriptedEngine(info=info)) as caller:
        error = (refused := await caller.unit(1, unit)).prefill.error
        assert (error.reason, error.field) == (reason, f"duplex.texts[0]{field}")
        assert refused.done.end == pb.UNIT_END_FAILED
        assert (await caller.unit(2)).done.end == pb.UNIT_END_LISTEN


def test_the_shipped_model_reads_nothing_while_it_listens() -> None:
    config = parse_config(json.loads((find("antiphon-mini") / "config.json").read_text()))
    assert antiphon_mini.model_info(config).text_purposes == frozenset()
