"""Units that the worker generates and finalises by itself (`automatic_units`)."""

import pytest

from antiphon.contract import Reason
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served, SessionOf
from tests.inference_service.support.caller import Caller, duplex, until
from tests.support.scripted_engine import TALK, ScriptedEngine, hang, listen, speak


async def answers(caller: Caller, unit: int) -> list[pb.GenerateResponse]:
    found: list[pb.GenerateResponse] = []
    while not (found and found[-1].HasField("finalized")):
        answer = await caller.read(Stream.GENERATE)
        assert answer.unit == unit
        found.append(answer)
    return found


async def ask(caller: Caller, unit: int, run: pb.GenerateUnit | None = None) -> None:
    await caller.write(Stream.PREFILL, pb.PrefillRequest(unit=unit, duplex=duplex(), run=run))


async def test_automatic_unit_takes_one_request_and_is_answered_on_generate(session_of: SessionOf) -> None:
    async with session_of(ScriptedEngine(*TALK), automatic_units=True) as caller:
        for unit in range(1, 3):
            await ask(caller, unit)
            found = await answers(caller, unit)
            assert found[0].prefilled.context_tokens > 0
            assert found[0].done.end == pb.UNIT_END_LISTEN, "it leaves with what the unit says first"
            assert sum(answer.HasField("prefilled") for answer in found) == 1
            assert sum(answer.HasField("done") for answer in found) == 1
            assert found[-1].finalized.unit == unit
        await caller.half_close(Stream.PREFILL)
        assert (await caller.end()).code.name == "OK"  # Prefill and Finalize had nothing to read


async def test_automatic_unit_obeys_its_own_run(session_of: SessionOf) -> None:
    engine = ScriptedEngine(speak("word"), repeat=True)
    async with session_of(engine, automatic_units=True) as caller:
        await ask(caller, 1, pb.GenerateUnit(force_listen=True))
        await answers(caller, 1)
        generated = [call for call in engine.session.calls if call[0] == "generate"]
        assert generated[0][:3] == ("generate", 1, True)


BAD_SAMPLING = pb.GenerateUnit(sampling=common.SamplingParams(temperature=-1.0))


@pytest.mark.parametrize(
    ("content", "run", "reason"),
    [
        (pb.DuplexInput(audio=common.AudioChunk(data=b"odd")), None, Reason.AUDIO_INVALID),
        (duplex(), BAD_SAMPLING, Reason.PARAMS_INVALID),
    ],
    ids=["input", "sampling"],
)
async def test_refused_unit_is_reported_by_done_and_session_continues(
    session_of: SessionOf, content: pb.DuplexInput, run: pb.GenerateUnit | None, reason: Reason
) -> None:
    async with session_of(ScriptedEngine(listen(), repeat=True), automatic_units=True) as caller:
        await caller.write(Stream.PREFILL, pb.PrefillRequest(unit=1, duplex=content, run=run))
        found = await answers(caller, 1)
        assert any(answer.HasField("prefilled") for answer in found) is (run is not None)
        (done,) = [answer.done for answer in found if answer.HasField("done")]
        assert (done.end, done.error.reason) == (pb.UNIT_END_FAILED, reason)
        await ask(caller, 2)
        assert (await answers(caller, 2))[0].done.end == pb.UNIT_END_LISTEN


async def test_units_beyond_the_window_end_their_session_alone(served: Served) -> None:
    """The attack: one request is a whole unit now, so a flood of requests is a flood of units."""
    engine = ScriptedEngine(hang("generate"))
    async with served(engine) as new_caller:
        neighbour = await new_caller().ready(automatic_units=True)
        flooder = await new_caller().ready(automatic_units=True)
        for unit in range(1, 4):  # a write after the end would make grpc.aio's client report INTERNAL
            await ask(flooder, unit)
        ending = await flooder.end()
        assert ending.reason == Reason.UNIT_WINDOW
        prefilled = [call for call in engine.sessions[1].calls if call[0] == "prefill"]
        assert len(prefilled) <= 2
        await ask(neighbour, 1)
        await until(lambda: ("generate", 1) in [call[:2] for call in engine.sessions[0].calls])


@pytest.mark.parametrize("stream", [Stream.GENERATE, Stream.FINALIZE])
async def test_manual_request_in_an_automatic_session_is_out_of_order(served: Served, stream: Stream) -> None:
    requests = {
        Stream.GENERATE: pb.GenerateRequest(unit=1, run=pb.GenerateUnit()),
        Stream.FINALIZE: pb.FinalizeRequest(unit=1),
    }
    async with served(ScriptedEngine()) as new_caller:
        neighbour = await new_caller().ready(automatic_units=True)
        caller = await new_caller().ready(automatic_units=True)
        await caller.write(stream, requests[stream])
        ending = await caller.end()
        assert ending.reason == Reason.UNIT_OUT_OF_ORDER
        assert "automatic_units" in ending.message
        await ask(neighbour, 1)
        await answers(neighbour, 1)


@pytest.mark.parametrize("request_", [
    pb.PrefillRequest(unit=1, duplex=duplex(), run=pb.GenerateUnit()),
    pb.PrefillRequest(unit=1, duplex=duplex(), keep_last_token=True),
])  # fmt: skip
async def test_run_in_a_manual_session_is_refused(session_of: SessionOf, request_: pb.PrefillRequest) -> None:
    async with session_of(ScriptedEngine()) as caller:
        await caller.write(Stream.PREFILL, request_)
        ending = await caller.end()
        assert (ending.reason, ending.fields) == (Reason.PAYLOAD_INVALID, ("run",))
