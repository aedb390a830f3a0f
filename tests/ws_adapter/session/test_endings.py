"""How sessions end by absence and by their workers, and the slot that must come back."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from tests.support.passing import Passing
from tests.support.scripted_engine import TALK, ScriptedEngine, hang, listen, running_worker
from tests.ws_adapter.support.conversation import CLOSE, INIT, append
from tests.ws_adapter.support.stage import Client, Stage, running_adapter, serving, until
from ws_adapter.server import listener

PING_S = 10.0
"""Twice that is less than a client may take with its first event, and more than a machine stands still."""


async def reach(stage: Stage, state: str, stack: AsyncExitStack, engine: ScriptedEngine) -> Client:
    """A client whose session is in `state`."""
    if state == "queued":
        for _ in range(engine.slots):
            await (await stack.enter_async_context(stage.client())).begin()
    client = await stack.enter_async_context(stage.client())
    await client.expect("session.queued" if state == "queued" else "session.queue_done")
    if state in ("configuring", "active", "running"):
        await client.send(INIT)
        await until(lambda: engine.sessions)
    if state in ("active", "running"):
        await client.expect("session.created")
    if state == "running":
        await client.send(append(3.0))
        await until(lambda: engine.session.heard)
    return client


async def unanswered_ping(passing: Passing) -> None:
    """A ping was due, and long after it its answer."""
    passing(PING_S)
    for _ in range(20):  # it is sent
        await asyncio.sleep(0.01)
    passing(PING_S)


@pytest.mark.parametrize("state", ["queued", "connected", "configuring", "active", "running"])
async def test_client_that_answers_no_ping_leaves_nothing_behind(
    state: str, passing: Passing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "PING_S", PING_S)
    engine = ScriptedEngine(hang("generate"), repeat=True, slots=1, slow_start=state == "configuring")
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


@pytest.mark.parametrize(("slots", "clients"), [(2, 12), pytest.param(4, 100, marks=pytest.mark.long)])
async def test_capacity_holds_for_simultaneous_clients_and_every_slot_comes_back(
    slots: int, clients: int
) -> None:
    """The engine itself complains if a slot is used twice."""
    engine = ScriptedEngine(*TALK, repeat=True, slots=slots)
    admitted: list[Client] = []
    async with serving(engine) as stage:

        async def visit(number: int) -> None:
            async with stage.client() as client:
                await client.send(INIT)
                await client.expect_until("session.created")
                admitted.append(client)
                assert sum(not session.is_closed for session in engine.sessions) <= slots
                await client.send(append(2.0))
                await client.expect("listen", "listen")
                if number % 3 == 0:
                    client.vanish()
                elif number % 3 == 1:
                    await client.send(CLOSE)
                    await client.rest()

        await asyncio.gather(*(visit(number) for number in range(clients)))
        queued = [client for client in admitted if client.events[0]["type"] == "session.queued"]
        assert (len(admitted), len(queued) >= clients // 2) == (clients, True)
        await until(lambda: len(engine.sessions) == clients)
        await until(lambda: all(session.is_closed for session in engine.sessions))
        await stage.until(free_slots=slots)


async def test_slot_taken_through_other_adapter_is_awaited() -> None:
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
