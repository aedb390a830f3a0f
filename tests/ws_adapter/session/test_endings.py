"""How sessions end: by the client, by its absence, by the worker; and the slot that must come back."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from tests.support.long import long
from tests.support.passing import Passing
from tests.support.scripted_engine import TALK, ScriptedEngine, hang, listen, running_worker, speak
from tests.ws_adapter.support.conversation import CLOSE, INIT, append, codes
from tests.ws_adapter.support.stage import PATIENCE_S, Client, ManualClock, Stage, running_adapter, until
from ws_adapter.server import listener

PING_S = 10.0
"""Twice that is less than a client may take with its first event, and more than a machine stands still."""


def free_again(engine: ScriptedEngine, sessions: int) -> bool:
    return len(engine.sessions) == sessions and all(session.is_closed for session in engine.sessions)


# ------------------------------------------------------------------------------------------------ close


async def reach(stage: Stage, state: str, stack: AsyncExitStack, engine: ScriptedEngine) -> Client:
    """A client whose session is in `state`."""
    if state == "queued":
        for _ in range(engine.slots):
            await (await stack.enter_async_context(stage.client())).begin()
    client = await stack.enter_async_context(stage.client())
    if state == "queued":
        await client.expect("session.queued")
        return client
    await client.expect("session.queue_done")
    if state == "connected":
        return client
    await client.send(INIT)
    if state == "configuring":
        await until(lambda: engine.sessions)
        return client
    await client.expect("session.created")
    if state == "running":
        await client.send(append(3.0))
        await until(lambda: engine.session.heard)
    return client


STATES = ["queued", "connected", "configuring", "active", "running"]


def engine_for(state: str) -> ScriptedEngine:
    return ScriptedEngine(hang("generate"), repeat=True, slots=1, slow_start=state == "configuring")


async def unanswered_ping(passing: Passing) -> None:
    """A ping was due, and long after it its answer."""
    passing(PING_S)
    for _ in range(20):  # it is sent
        await asyncio.sleep(0.01)
    passing(PING_S)


async def slot_is_free(stage: Stage, engine: ScriptedEngine) -> None:
    """The worker's slot is clean and the next client has it."""
    async with asyncio.timeout(PATIENCE_S), stage.client() as following:
        await following.expect_until("session.queue_done")
        assert all(session.is_closed for session in engine.sessions)


@pytest.mark.parametrize("state", STATES)
async def test_close_in_each_state(state: str) -> None:
    engine = engine_for(state)
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(running_worker(engine, slots=1))
        stage = await stack.enter_async_context(running_adapter(worker.address))
        client = await reach(stage, state, stack, engine)

        await client.send(CLOSE, append(), CLOSE)
        events, code = await client.end()

        assert [(e["type"], e["reason"]) for e in events] == [("session.closed", "user_stop")]
        assert code == 1000
        if state != "queued":
            await slot_is_free(stage, engine)


@pytest.mark.parametrize("state", STATES)
async def test_client_that_vanishes_leaves_nothing_behind(state: str) -> None:
    engine = engine_for(state)
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(running_worker(engine, slots=1))
        stage = await stack.enter_async_context(running_adapter(worker.address))
        client = await reach(stage, state, stack, engine)

        client.vanish()

        if state == "queued":
            async with stage.client() as following:
                assert (await following.expect("session.queued"))["position"] == 1
        else:
            await slot_is_free(stage, engine)


@pytest.mark.parametrize("state", STATES)
async def test_client_that_answers_no_ping_leaves_nothing_behind(
    state: str, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PING_S", PING_S)
    engine = engine_for(state)
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(running_worker(engine, slots=1))
        stage = await stack.enter_async_context(running_adapter(worker.address, init_timeout_s=29))
        client = await reach(stage, state, stack, engine)

        client.socket.transport.pause_reading()
        await unanswered_ping(passing)

        if state == "queued":
            await stage.until_queue(0)
        else:
            await until(lambda: all(session.is_closed for session in engine.sessions))
            await stage.until(free_slots=1)
        client.vanish()


async def test_clients_come_and_go_and_every_slot_comes_back() -> None:
    engine = ScriptedEngine(*TALK, repeat=True, slots=2)
    async with running_worker(engine, slots=2) as worker, running_adapter(worker.address) as stage:

        async def visit(number: int) -> None:
            async with stage.client() as client:
                await client.send(INIT)
                await client.expect_until("session.created")
                await client.send(append(2.0))
                await client.expect("listen", "listen")
                if number % 3 == 0:
                    client.vanish()
                elif number % 3 == 1:
                    await client.send(CLOSE)
                    await client.rest()

        await asyncio.gather(*(visit(number) for number in range(12)))

        await until(lambda: free_again(engine, 12))
        await stage.until(free_slots=2)


async def test_slot_is_given_on_only_when_the_worker_has_cleaned_it() -> None:
    engine = ScriptedEngine(listen(), slots=1, slow_cleanup=True)
    async with running_worker(engine, slots=1) as worker, running_adapter(worker.address) as stage:
        async with stage.client() as first, stage.client() as second:
            await first.begin()
            await second.expect("session.queued")
            await first.send(CLOSE)
            await first.rest()
            await until(lambda: engine.session.is_closing)
            assert (await stage.request("/readyz"))[2]["free_slots"] == 0
            engine.session.finish_cleanup()
            await second.expect("session.queue_done")
            engine.slow_cleanup = False


@long
async def test_capacity_holds_for_many_who_come_at_once() -> None:
    """The engine itself complains if a slot is used twice."""
    engine = ScriptedEngine(listen(), slots=4)
    async with running_worker(engine, slots=4) as worker, running_adapter(worker.address) as stage:
        admitted: list[Client] = []

        async def visit() -> None:
            async with stage.client() as client:
                await client.send(INIT)
                await client.expect_until("session.created")
                admitted.append(client)
                live = sum(not session.is_closed for session in engine.sessions)
                assert live <= 4
                await client.send(append())
                await client.expect("listen")
                await client.send(CLOSE)
                await client.rest()

        await asyncio.gather(*(visit() for _ in range(100)))

        assert len(admitted) == 100
        queued = [c.events[0] for c in admitted if c.events[0]["type"] == "session.queued"]
        assert len(queued) >= 50
        await until(lambda: free_again(engine, 100))


# ------------------------------------------------------------------------------------------------ queue


async def test_waiting_clients_are_told_their_place() -> None:
    clock = ManualClock()
    engine = ScriptedEngine(listen(), slots=1)
    async with running_worker(engine, slots=1) as worker:
        async with running_adapter(worker.address, clock=clock) as stage:
            async with stage.client() as first, stage.client() as second, stage.client() as third:
                await first.begin()
                queued = await second.expect("session.queued")
                assert queued["position"] == 1
                assert queued["queue_length"] == 1
                assert (queued["estimated_wait_s"], queued["estimate_is_guess"]) == (5.0, True)
                assert (await third.expect("session.queued"))["position"] == 2
                await clock.advance(3)
                update = await third.expect("session.queue_update")
                assert (update["position"], update["estimated_wait_s"]) == (2, 11.0)
                await second.expect("session.queue_update")
                second.vanish()
                await first.send(CLOSE)
                await third.expect("session.queue_done")
                await third.send(CLOSE)
                await third.rest()


async def test_full_queue() -> None:
    engine = ScriptedEngine(listen(), slots=1)
    async with running_worker(engine, slots=1) as worker:
        async with running_adapter(worker.address, queue_capacity=1) as stage:
            async with stage.client() as first, stage.client() as second, stage.client() as third:
                await first.begin()
                await second.expect("session.queued")
                events, code = await third.end()
                assert codes(events) == ["queue_full"]
                assert events[0]["error"]["type"] == "server_error"
                assert code == 1013


async def test_longest_wait_in_the_queue() -> None:
    clock = ManualClock()
    engine = ScriptedEngine(listen(), slots=1)
    async with running_worker(engine, slots=1) as worker:
        async with running_adapter(worker.address, clock=clock, queue_max_wait_s=5) as stage:
            async with stage.client() as first, stage.client() as second:
                await first.begin()
                await second.expect("session.queued")
                await clock.advance(5)
                events, code = await second.end()
                assert codes(events) == ["queue_timeout"]
                assert code == 1013


async def test_without_a_worker_clients_wait_and_are_then_sent_away() -> None:
    clock = ManualClock()
    async with running_adapter("127.0.0.1:1", clock=clock, wait=False) as stage:
        async with stage.client() as client:
            await client.expect("session.queued")
            await clock.advance(10)
            events, code = await client.end()
            assert codes(events) == ["service_unavailable"]
            assert code == 1013
        assert (await stage.request("/ready"))[0] == 503


# --------------------------------------------------------------------------------------------- the worker


class WorkerProcess:
    """A real worker in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, address: str) -> None:
        self.process = process
        self.address = address

    def kill(self, number: int = signal.SIGKILL) -> None:
        os.kill(self.process.pid, number)


@asynccontextmanager
async def worker_process(*arguments: str) -> AsyncIterator[WorkerProcess]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.scripted_worker", *arguments, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            line = (await process.stdout.readline()).decode()
        assert line.startswith("worker ready on "), line
        yield WorkerProcess(process, line.removeprefix("worker ready on ").strip())
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_killed_worker_gives_every_client_exactly_one_end() -> None:
    clock = ManualClock()
    async with worker_process("--slots", "4", "--script", "hang") as worker:
        async with running_adapter(worker.address, clock=clock) as stage, AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(stage.client()) for _ in range(4)]
            for client in clients:
                await client.begin()
                await client.send(append(2.0))
                await client.expect("listen")
            waiting = await stack.enter_async_context(stage.client())
            await waiting.expect("session.queued")

            worker.kill()
            ends = [await client.end() for client in clients]

            for events, code in ends:
                assert [e["type"] for e in events] == ["error", "session.closed"]
                assert events[0]["error"]["code"] == "inference_error"
                assert events[1]["reason"] == "backend_error"
                assert code == 1011
            # Whoever waits goes on waiting: a worker may come.
            await clock.advance(3)
            assert (await waiting.expect("session.queue_update"))["position"] == 1


async def test_worker_lost_before_the_session_began_is_replaced_unseen() -> None:
    dying = ScriptedEngine(listen(), slots=2, slow_start=True)
    other = ScriptedEngine(listen(), slots=1)
    async with running_worker(dying, slots=2) as first, running_worker(other, slots=1) as second:
        async with running_adapter(first.address, second.address) as stage, stage.client() as client:
            await stage.until(slots=3)
            await client.expect("session.queue_done")
            await client.send(INIT, append(input_id="held"))
            await until(lambda: dying.sessions)
            first.worker.interrupt()
            first.worker.interrupt()

            await client.expect("session.created")

            assert (await client.expect("listen"))["input_id"] == "held"
            assert len(other.sessions) == 1


async def test_slot_that_somebody_else_took_is_waited_for() -> None:
    """The adapter counts only on what the worker says is free."""
    engine = ScriptedEngine(listen(), slots=1)
    async with running_worker(engine, slots=1) as worker:
        async with running_adapter(worker.address) as stage, stage.client() as holder:
            await holder.begin()
            async with running_adapter(worker.address) as other, other.client() as client:
                await client.expect("session.queued")
                await holder.send(CLOSE)
                await holder.rest()
                await client.expect_until("session.queue_done")


async def test_worker_going_away_lets_its_sessions_finish() -> None:
    engine = ScriptedEngine(speak("One"), repeat=True)
    async with running_worker(engine, drain_timeout_s=1.0) as worker:
        async with running_adapter(worker.address) as stage, stage.client() as client:
            await client.begin()
            worker.worker.interrupt()
            await client.send(append())
            await client.expect("text", "audio")

            events, code = await client.end()

            assert [e.get("reason") for e in events] == ["server_shutdown"]
            assert code == 1012


async def test_session_that_has_not_begun_does_not_end_with_a_worker_that_leaves() -> None:
    """Another one takes it, even if the first one's time is up before it ends the session."""
    leaving = ScriptedEngine(listen(), slots=2, slow_start=True)
    staying = ScriptedEngine(listen(), slots=1)
    async with (
        running_worker(leaving, slots=2) as first,
        running_worker(staying, slots=1) as second,
        running_adapter(first.address, second.address) as stage,
    ):
        await stage.until(slots=3)
        async with stage.client() as client:
            await client.expect("session.queue_done")
            await client.send(INIT)
            await until(lambda: leaving.sessions)
            first.worker._servicer.go_away(0.0)
            async with stage.client() as other:  # to whose worker it is told before this
                await other.expect("session.queue_done")
            for _ in range(2):
                first.worker.interrupt()

            await client.expect("session.created")

            assert len(staying.sessions) == 1


async def test_one_of_two_workers_goes_away() -> None:
    leaving, staying = ScriptedEngine(listen(), slots=1), ScriptedEngine(listen(), slots=1)
    async with (
        running_worker(leaving, slots=1, drain_timeout_s=2.0) as first,
        running_worker(staying, slots=1) as second,
        running_adapter(first.address, second.address) as stage,
    ):
        await stage.until(slots=2)
        async with stage.client() as one, stage.client() as other, stage.client() as late:
            await one.begin()
            moved, kept = (one, other) if leaving.sessions else (other, one)
            await other.begin()
            await late.expect("session.queued")
            first.worker.interrupt()
            await stage.until(workers=1)
            await moved.send(append())
            await moved.expect("listen")

            events, code = await moved.end()

            assert [e.get("reason") for e in events] == ["server_shutdown"]
            assert code == 1012
            await kept.send(append())
            await kept.expect("listen")
            await kept.send(CLOSE)
            await late.expect_until("session.queue_done")
