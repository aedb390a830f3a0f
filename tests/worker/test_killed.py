"""kill -9 of either side, in every state of a session."""

import grpc
import pytest

from tests.scripted_engine import running_worker
from tests.worker.caller import Caller, channel_to, soon, until, until_free
from tests.worker.holder import STATES, bring_to, engine_for, holding, is_there
from tests.worker.test_process import process

ARGUMENTS = {state: ["--script", f"hang_{state}"] for state in ("prefill", "generate", "finalize")}
ARGUMENTS["closing"] = ["--slow-cleanup"]


@pytest.mark.parametrize("state", STATES)
async def test_the_slot_of_a_killed_caller_is_clean_again(state: str) -> None:
    engine = engine_for(state)
    async with running_worker(engine) as worker:
        async with holding(worker.address, state) as holder:
            await until(lambda: is_there(state, engine))
            await until_free(worker.address, 0)
            holder.kill()
            await soon(holder.wait())
        if state == "closing":
            engine.slow_cleanup = False
            engine.session.finish_cleanup()
        await until_free(worker.address, 1)
    assert all(session.is_closed for session in engine.sessions)


@pytest.mark.parametrize("state", STATES)
async def test_a_killed_worker_is_told_to_every_stream(state: str) -> None:
    arguments = ARGUMENTS.get(state, [])
    async with process(*arguments, "--slots", "1") as worker, channel_to(worker.address) as channel:
        caller = Caller(channel)
        await bring_to(state, caller)
        await until_free(worker.address, 0)
        worker.process.kill()
        for stream in caller.calls:
            ending = await caller.ending(stream)
            assert (ending.code, ending.reason) == (grpc.StatusCode.UNAVAILABLE, "")
