"""Every way out of a session: the three calls end alike, and the slot comes back clean."""

import asyncio

import grpc
import pytest

from antiphon.contract import Reason
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.interface.engine import End, SessionFailed
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served, SessionOf
from tests.inference_service.support import holder
from tests.inference_service.support.caller import Caller, until
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import Play, ScriptedEngine, context_full

Code = grpc.StatusCode
PHASES = [*holder.STATES[:-1], "draining"]


def held(phase: str) -> str:
    """The state of a caller who is in the phase, but for its end."""
    return "generate" if phase == "draining" else phase


async def bring_to(phase: str, caller: Caller, stream: Stream) -> None:
    """Opens a session with `stream` and leaves it in `phase`."""
    if phase == "attaching":
        await caller.open(*{stream, Stream.GENERATE})
    else:
        await holder.bring_to(held(phase), caller)
    if phase == "draining":
        await caller.half_close(Stream.PREFILL)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("stream", Stream)
async def test_cancelling_one_call_ends_all_of_them(served: Served, phase: str, stream: Stream) -> None:
    async with served(holder.engine_for(held(phase))) as new_caller:
        caller = new_caller()
        await bring_to(phase, caller, stream)
        caller.calls[stream].cancel()
        codes = {(await caller.ending(other)).code for other in caller.calls if other is not stream}
        assert codes <= {Code.CANCELLED}
        async with asyncio.timeout(PATIENCE_S):
            while not (await caller.settle()).free_slots:
                pass


async def test_a_unit_in_flight_behind_a_full_context_is_answered(session_of: SessionOf) -> None:
    full = Play(end=End.CONTEXT_FULL, hold="generate")
    engine = ScriptedEngine(full, context_full())
    async with session_of(engine) as caller:
        await caller.send_unit(1)
        await caller.send_unit(2)
        await until(lambda: ("finalize", 2) in engine.session.calls)
        engine.session.release("generate", 1)
        ends = [(await caller.answers(unit)).done.end for unit in (1, 2)]
        ending = await caller.end()
    assert ends == [pb.UNIT_END_CONTEXT_FULL] * 2
    assert ending.code is Code.OK


async def test_an_engine_that_refuses_the_config_ends_the_session(served: Served) -> None:
    engine = ScriptedEngine(refuses=SessionFailed(Reason.CONFIG_INVALID, "The prompt is too long."))
    async with served(engine) as new_caller:
        caller = await new_caller().open()
        await caller.send_config()
        ending = await caller.end()
    assert (ending.code, ending.reason) == (Code.INVALID_ARGUMENT, Reason.CONFIG_INVALID)
    assert ending.fields == ("system_prompt",)


async def test_a_poisoned_session_fails_alone(served: Served) -> None:
    poisoned = Play(fails_session=SessionFailed(Reason.INFERENCE_FAILED, "It cannot go on."))
    async with served(ScriptedEngine(poisoned)) as new_caller:
        neighbour, caller = await new_caller().ready(), await new_caller().ready()
        await caller.send_last_unit(1)
        assert (await caller.end()).reason == Reason.INFERENCE_FAILED
        assert (await neighbour.leave()).code is Code.OK


async def test_a_defect_of_ours_ends_its_session_without_its_text(
    session_of: SessionOf, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with session_of(ScriptedEngine()) as caller:
        monkeypatch.setattr(
            "inference_service.session.calls.session_calls.requests.content", lambda *_, **__: 1 / 0
        )
        await caller.prefill(1)
        ending = await caller.end()
    assert (ending.code, ending.reason) == (Code.INTERNAL, Reason.INFERENCE_FAILED)
    assert "division" not in ending.message
    assert "ZeroDivisionError" in caplog.text


async def test_nothing_of_a_session_is_seen_by_the_next_in_its_slot(served: Served) -> None:
    engine = ScriptedEngine(slots=1)
    async with served(engine) as new_caller:
        first = await new_caller().ready(system_prompt="canary", seed=1)
        await first.unit(1)
        first.calls[Stream.PREFILL].cancel()
        await until(lambda: engine.session.is_closed)
        second = await new_caller().open()
        ready = await second.configure()
    assert ready.effective.system_prompt == ""
    assert engine.session.duplex.system_prompt == ""
