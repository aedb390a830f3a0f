"""The ordinary life of a session on a real server: config, units, drain."""

import grpc
import numpy as np
import pytest

from antiphon.contract import METADATA_LEASE, METADATA_TRACEPARENT, METADATA_WORKER_ID, Reason
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.interface.engine import Failure
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served, SessionOf
from tests.inference_service.support.caller import duplex
from tests.support.scripted_engine import Play, ScriptedEngine, fails, listen, speak

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_initial_metadata_names_worker_and_ready_carries_effective_config(served: Served) -> None:
    async with served(ScriptedEngine(), worker_id="w-7") as new_caller:
        caller = await new_caller().open()
        for call in caller.calls.values():
            assert dict(await call.initial_metadata())[METADATA_WORKER_ID].startswith("w-7-")
        ready = await caller.configure(language="en", duplex=common.DuplexConfig(temperature=0.5))
    assert ready.worker_id.startswith("w-7-")
    assert (ready.model, ready.prompt_tokens) == ("scripted", 10)
    assert (ready.input_sample_rate_hz, ready.output_sample_rate_hz) == (16_000, 24_000)
    assert (ready.context_limit, ready.max_units_in_flight, ready.unit_duration.seconds) == (4096, 2, 1)
    assert ready.effective.duplex.temperature == 0.5
    assert list(ready.ignored_fields) == ["language"]


async def test_sessions_without_a_seed_draw_theirs_from_the_worker_s(served: Served) -> None:
    seeds = []
    for _ in range(2):
        engine = ScriptedEngine()
        async with served(engine, seed=11) as new_caller:
            for _ in range(2):
                await new_caller().ready()
        seeds.append([session.setup.seed for session in engine.sessions])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 2


async def test_done_is_in_the_unit_s_last_message_and_audio_is_float32(session_of: SessionOf) -> None:
    async with session_of(ScriptedEngine(speak("a", "b"))) as caller:
        pieces = (await caller.unit(1)).pieces
    assert [piece.HasField("done") for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    audio = pieces[0].audio
    assert (audio.encoding, audio.sample_rate_hz) == (common.AUDIO_ENCODING_PCM_F32LE, 24_000)
    assert np.max(np.abs(np.frombuffer(audio.data, "<f4"))) == pytest.approx(0.1, abs=0.01)


async def test_usage_is_the_unit_s_and_session_usage_the_sum(session_of: SessionOf) -> None:
    async with session_of(ScriptedEngine()) as caller:
        units = [await caller.unit(unit) for unit in (1, 2, 3)]
    assert [unit.done.usage.input_audio_tokens for unit in units] == [10, 10, 10]
    assert [unit.finalize.session_usage.input_audio_tokens for unit in units] == [10, 20, 30]
    assert units[2].finalize.context_tokens == 10 + 3 * 12
    assert units[0].prefill.prefilled.timings.prefill.nanos > 0


async def test_requests_reach_the_engine_as_they_were_sent(session_of: SessionOf) -> None:
    engine, ramp = ScriptedEngine(speak("Hello"), repeat=True), np.linspace(-1, 1, 8000, dtype="<f4")
    async with session_of(engine, system_prompt="Be brief.", seed=3) as caller:
        sampling = common.SamplingParams(temperature=0.25, seed=4)
        answers = await caller.unit(1, duplex(ramp), force_listen=True, sampling=sampling)
        await caller.unit(2)
        heard = engine.session.heard[1]
    assert (engine.session.duplex.system_prompt, engine.session.duplex.seed) == ("Be brief.", 3)
    np.testing.assert_array_equal(heard, ramp)
    assert (answers.done.end, answers.text) == (pb.UNIT_END_LISTEN, "")
    assert [(piece.HasField("audio"), piece.HasField("text")) for piece in answers.pieces] == [(False, False)]
    first, second = [call for call in engine.session.calls if call[0] == "generate"]
    assert (first[2], first[3].temperature, first[3].seed) == (True, 0.25, 4)
    assert (second[2], second[3].temperature, second[3].seed) == (False, None, None)


async def test_sessions_side_by_side_do_not_mix(served: Served) -> None:
    engine = ScriptedEngine(speak("Hello"), slots=3)
    async with served(engine) as new_caller:
        callers = [await new_caller().open() for _ in range(3)]
        for number, caller in enumerate(callers):
            await caller.configure(system_prompt=f"prompt {number}")
        for number, caller in enumerate(callers):
            await caller.send_unit(1, duplex(np.full(16_000, number / 10)))
        for caller in callers:
            assert (await caller.answers(1)).text == "Hello"
    assert [s.duplex.system_prompt for s in engine.sessions] == ["prompt 0", "prompt 1", "prompt 2"]
    assert [round(float(s.heard[1][0]), 3) for s in engine.sessions] == [0.0, 0.1, 0.2]


@pytest.mark.parametrize("trace", [TRACE, "nonsense"])
async def test_a_lease_and_any_trace_context_are_accepted(served: Served, trace: str) -> None:
    async with served(ScriptedEngine()) as new_caller:
        caller = await new_caller(None, (METADATA_LEASE, "0:1:abc"), (METADATA_TRACEPARENT, trace)).ready()
        await caller.unit(1, traceparent=trace)
        assert (await caller.leave()).code is grpc.StatusCode.OK


async def test_the_running_unit_stops_and_says_cancelled(session_of: SessionOf) -> None:
    engine = ScriptedEngine(speak("Once upon", hold="generate"))
    async with session_of(engine) as caller:
        await caller.send_unit(1)
        assert (await caller.read(Stream.GENERATE)).text.text == "Once upon"
        await caller.cancel(1)
        answers = await caller.answers(1)
    assert answers.done.end == pb.UNIT_END_CANCELLED


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
