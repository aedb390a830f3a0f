"""kill -9 of either side, in every state of a session."""

import grpc
import pytest

from tests.failures.link import link_to
from tests.inference_service.process.test_process import process
from tests.inference_service.support.caller import Caller, channel_to, soon, until, until_free
from tests.inference_service.support.holder import STATES, bring_to, engine_for, holding, is_there
from tests.support.scripted_engine import ScriptedEngine, running_worker, speak

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
async def test_killed_worker_ends_every_stream_as_unavailable(state: str) -> None:
    arguments = ARGUMENTS.get(state, [])
    async with process(*arguments, "--slots", "1") as worker, channel_to(worker.address) as channel:
        caller = Caller(channel)
        await bring_to(state, caller)
        await until_free(worker.address, 0)
        worker.process.kill()
        for stream in caller.calls:
            ending = await caller.ending(stream)
            assert (ending.code, ending.reason) == (grpc.StatusCode.UNAVAILABLE, "")


async def test_a_caller_that_vanishes_is_no_error_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    engine = ScriptedEngine(speak(*["word"] * 40, hold="generate"))
    async with running_worker(engine) as worker:
        for _ in range(10):
            async with link_to(worker.address) as link, channel_to(link.address) as channel:
                caller = await Caller(channel).ready()
                await caller.send_unit(1)
                await until(lambda: ("finalize", 1) in engine.session.calls)
                engine.session.release("generate", 1)
                link.cut()
                await until(lambda: engine.session.is_closed)
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
