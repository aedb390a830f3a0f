"""Attach the calls of a session, and refuse those that belong to none."""

import gc

import grpc
import pytest

from antiphon.contract import METADATA_WORKER_ID, Reason
from antiphon.grpc import get_info
from inference_service.session.units import Stream
from tests.inference_service.conftest import Served
from tests.inference_service.support.caller import Caller, channel_to, soon, until
from tests.support.scripted_engine import ScriptedEngine, listen, running_worker

Code = grpc.StatusCode


@pytest.mark.parametrize("phase", ["attaching", "configuring", "active"])
@pytest.mark.parametrize("stream", Stream)
async def test_a_second_stream_of_a_kind_is_refused_and_its_owner_not_disturbed(
    served: Served, phase: str, stream: Stream
) -> None:
    async with served(ScriptedEngine()) as new_caller:
        owner: Caller = new_caller("mine")
        if phase == "attaching":
            await owner.open(stream)
        else:
            await owner.open()
        if phase == "active":
            await owner.configure()
        thief = new_caller("mine")
        thief.start(stream)
        ending = await thief.end()
        assert (ending.code, ending.reason) == (Code.ALREADY_EXISTS, Reason.STREAM_EXISTS)
        assert ending.metadata == {"stream": stream.value}
        if phase == "attaching":
            await owner.open(*(other for other in Stream if other is not stream))
        if phase != "active":
            await owner.configure()
        await owner.unit(1)


async def test_calls_at_the_same_time_get_no_more_slots_than_there_are(served: Served) -> None:
    async with served(ScriptedEngine(slots=4)) as new_caller:
        callers: list[Caller] = [new_caller() for _ in range(30)]
        calls = [caller.start(Stream.PREFILL) for caller in callers]
        answers = [dict(await soon(call.initial_metadata()) or ()) for call in calls]
        attached = [c for c, it in zip(callers, answers, strict=True) if METADATA_WORKER_ID in it]
        refused = [await caller.end() for caller in callers if caller not in attached]
        for caller in attached:
            caller.calls[Stream.PREFILL].cancel()
    assert len(attached) == 4
    assert {ending.reason for ending in refused} == {Reason.NO_FREE_SLOT}


async def test_a_session_id_can_be_used_again_after_the_session(served: Served) -> None:
    engine = ScriptedEngine(slots=1)
    async with served(engine) as new_caller:
        for _ in range(3):
            caller = await new_caller("again").ready()
            await caller.unit(1)
            assert (await caller.leave()).code is Code.OK


async def test_the_same_session_id_is_refused_while_the_old_session_is_cleaned(served: Served) -> None:
    engine = ScriptedEngine(slots=2, slow_cleanup=True)
    async with served(engine) as new_caller:
        old = await new_caller("again").ready()
        old.calls[Stream.PREFILL].cancel()
        await until(lambda: engine.session.is_closing)
        new = new_caller("again")
        new.start(Stream.PREFILL)
        assert (await new.end()).reason == Reason.STREAM_EXISTS
        engine.session.finish_cleanup()


async def test_failed_calls_give_their_streams_back_without_the_garbage_collector(served: Served) -> None:
    """More of them than `max_concurrent_streams` allows at once, on one channel."""
    gc.collect()
    gc.disable()
    try:
        async with served(ScriptedEngine(slots=1)) as new_caller:
            for _ in range(60):
                caller = new_caller("not a name")
                caller.start(Stream.PREFILL)
                assert (await caller.end()).reason == Reason.METADATA_INVALID
            for _ in range(20):
                caller = await new_caller().open()
                await caller.send_config(model="unknown")
                assert (await caller.end()).code is not Code.OK
            await new_caller().ready()
    finally:
        gc.enable()


async def test_session_without_time_is_refused_and_get_info_shows_no_free_slots() -> None:
    engine = ScriptedEngine(listen(), slots=4, repeat=True)
    async with running_worker(engine, slots=4) as worker, channel_to(worker.address) as channel:
        talking = await Caller(channel).ready()
        worker.worker.admission.has_time = lambda: False  # type: ignore[method-assign]
        info = await get_info(worker.address)
        assert (info.slots, info.free_slots) == (4, 0)
        late = Caller(channel)
        late.start(Stream.PREFILL)
        assert (await late.end()).reason == Reason.NO_FREE_SLOT
        await talking.unit(1)
        worker.worker.admission.has_time = lambda: True  # type: ignore[method-assign]
        assert (await get_info(worker.address)).free_slots == 3
        await Caller(channel).ready()
