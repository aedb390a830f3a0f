"""CancelUnits acts when it is read: it ends speaking, never hearing."""

from antiphon.v1 import inference_service_pb2 as pb
from inference_service.session.units import Stream
from tests.inference_service.conftest import SessionOf
from tests.inference_service.support.caller import until
from tests.support.scripted_engine import ScriptedEngine, hang, speak


async def test_the_running_unit_stops_and_says_cancelled(session_of: SessionOf) -> None:
    engine = ScriptedEngine(speak("Once upon", hold="generate"))
    async with session_of(engine) as caller:
        await caller.send_unit(1)
        assert (await caller.read(Stream.GENERATE)).text.text == "Once upon"
        await caller.cancel(1)
        answers = await caller.answers(1)
    assert answers.done.end == pb.UNIT_END_CANCELLED


async def test_a_cancel_overtakes_a_unit_that_waits_behind_a_slow_one(session_of: SessionOf) -> None:
    engine = ScriptedEngine(hang("prefill"), speak("Hello"))
    async with session_of(engine) as caller:
        await caller.send_unit(1)
        await caller.send_unit(2)
        await caller.cancel(2)
        await until(lambda: ("cancel", 2) in engine.session.calls)
        engine.session.release("prefill", 1)
        ends = [(await caller.answers(unit)).done.end for unit in (1, 2)]
    assert ends == [pb.UNIT_END_CANCELLED] * 2
