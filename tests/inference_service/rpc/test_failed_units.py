"""A failed unit is data: three answers, and the session goes on."""

import numpy as np
import pytest

from antiphon.contract import Reason
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.interface.engine import Failure
from inference_service.session.units import Stream
from tests.inference_service.conftest import SessionOf
from tests.inference_service.support.caller import UnitAnswers, duplex
from tests.support.scripted_engine import Play, ScriptedEngine, fails, hang, listen

IMAGE = pb.DuplexInput(audio=duplex().audio, frames=[common.Image(data=b"\xff\xd8")])
REFUSED = [
    pytest.param(duplex(np.array([np.nan])), Reason.AUDIO_INVALID, "duplex.audio.data", id="nan"),
    pytest.param(duplex(rate=8000), Reason.AUDIO_INVALID, "duplex.audio.sample_rate_hz", id="rate"),
    pytest.param(duplex(np.zeros(16_001)), Reason.AUDIO_INVALID, "duplex.audio.data", id="too long"),
    pytest.param(pb.DuplexInput(), Reason.AUDIO_INVALID, "duplex.audio", id="no audio"),
    pytest.param(IMAGE, Reason.CONTENT_UNSUPPORTED, "duplex.frames", id="picture"),
]


def check_failed(answers: UnitAnswers, reason: str) -> None:
    assert answers.done.end == pb.UNIT_END_FAILED
    assert answers.done.error.reason == reason
    assert (answers.text, answers.samples) == ("", 0)


@pytest.mark.parametrize(("content", "reason", "field"), REFUSED)
async def test_bad_input_fails_its_unit_alone(
    session_of: SessionOf, content: pb.DuplexInput, reason: Reason, field: str
) -> None:
    engine = ScriptedEngine()
    async with session_of(engine) as caller:
        before = await caller.unit(1)
        failed = await caller.unit(2, content)
        after = await caller.unit(3)
    check_failed(failed, reason)
    assert (failed.prefill.error.reason, failed.prefill.error.field) == (reason, field)
    assert failed.finalize.context_tokens == before.finalize.context_tokens
    assert after.done.end == pb.UNIT_END_LISTEN
    assert sorted(engine.session.heard) == [1, 3]


async def test_bad_parameters_fail_a_unit_that_was_heard(session_of: SessionOf) -> None:
    async with session_of(ScriptedEngine()) as caller:
        failed = await caller.unit(1, sampling=common.SamplingParams(top_p=7))
        after = await caller.unit(2)
    check_failed(failed, Reason.PARAMS_INVALID)
    assert failed.done.error.field == "run.sampling.top_p"
    assert failed.prefill.prefilled.context_tokens == 22
    assert after.done.end == pb.UNIT_END_LISTEN


async def test_a_failed_inference_fails_its_unit_alone(session_of: SessionOf) -> None:
    async with session_of(ScriptedEngine(fails(), listen())) as caller:
        failed, after = await caller.unit(1), await caller.unit(2)
    check_failed(failed, Reason.INFERENCE_FAILED)
    assert failed.done.error.retryable
    assert after.done.end == pb.UNIT_END_LISTEN


async def test_an_input_that_the_engine_refuses_fails_its_unit_alone(session_of: SessionOf) -> None:
    refused = Play(refused=Failure(Reason.INPUT_TOO_LONG, "It does not fit."))
    async with session_of(ScriptedEngine(refused, listen())) as caller:
        failed, after = await caller.unit(1), await caller.unit(2)
    check_failed(failed, Reason.INPUT_TOO_LONG)
    assert failed.prefill.error.reason == Reason.INPUT_TOO_LONG
    assert after.done.end == pb.UNIT_END_LISTEN


async def test_answers_keep_their_order_when_a_bad_unit_follows_a_slow_one(session_of: SessionOf) -> None:
    engine = ScriptedEngine(hang("generate"))
    async with session_of(engine) as caller:
        await caller.send_unit(1)
        await caller.send_unit(2, duplex(np.array([np.inf])))
        assert (await caller.read(Stream.PREFILL)).unit == 1
        engine.session.release("generate", 1)
        assert (await caller.read(Stream.PREFILL)).unit == 2
        assert [(await caller.read(Stream.GENERATE)).unit for _ in range(2)] == [1, 2]
        assert [(await caller.read(Stream.FINALIZE)).unit for _ in range(2)] == [1, 2]


async def test_every_unit_of_a_bad_session_has_three_answers(session_of: SessionOf) -> None:
    """All kinds of failure after one another, two units in flight."""
    refused = Play(refused=Failure(Reason.INPUT_TOO_LONG, "It does not fit."))
    engine = ScriptedEngine(listen(), listen(), fails(), refused, listen(), repeat=True)
    async with session_of(engine) as caller:

        async def send(unit: int) -> None:
            kind = unit % 5
            if kind == 2:
                await caller.cancel(unit)
            await caller.send_unit(
                unit,
                duplex(np.array([np.nan])) if kind == 1 else None,
                sampling=common.SamplingParams(temperature=-1.0) if kind == 0 else None,
            )

        await send(1)
        ends = []
        for unit in range(1, 26):
            await send(unit + 1)
            ends.append((await caller.answers(unit)).done.end)
    failed, cancelled = pb.UNIT_END_FAILED, pb.UNIT_END_CANCELLED
    assert ends == [failed, cancelled, failed, failed, failed] * 5
