"""Chats on real sockets with a real worker: slots, modes, large uploads, and clients that leave meanwhile."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, write
from tests.ws_adapter.support.chat_conversation import request
from tests.ws_adapter.support.stage import Stage, serving
from ws_adapter.protocol.core.actions import Run
from ws_adapter.session import session
from ws_adapter.worker.session_streams import prefill_bytes

LARGE = request({"role": "user", "content": "x" * 3 * 2**20})


@asynccontextmanager
async def chatting() -> AsyncIterator[Stage]:
    """An adapter in front of a worker with one slot, which is free at the end."""
    engine = ScriptedEngine(write("Seven."), slots=1, info=EVERYTHING, repeat=True)
    async with serving(engine) as stage:
        yield stage
        await stage.until(free_slots=1)


async def test_large_turn_is_serialised_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[threading.Thread, int]] = []

    def noted(run: Run, traceparent: str) -> bytes:
        message = prefill_bytes(run, traceparent)
        made.append((threading.current_thread(), len(message)))
        return message

    monkeypatch.setattr(session, "prefill_bytes", noted)
    async with chatting() as chat, chat.client("/ws/chat") as client:
        await client.send(LARGE)
        await client.expect_until("done")

    ((thread, size),) = made
    assert thread is not threading.main_thread()
    assert size > 3 * 2**20


async def test_client_that_vanishes_while_its_turn_is_serialised(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def held(run: Run, traceparent: str) -> bytes:
        begun.set()
        assert go_on.wait(PATIENCE_S)
        return prefill_bytes(run, traceparent)

    monkeypatch.setattr(session, "prefill_bytes", held)
    async with chatting() as chat:
        async with chat.client("/ws/chat") as client:
            await client.send(LARGE)
            await asyncio.to_thread(begun.wait, PATIENCE_S)
        await chat.until(free_slots=1)
        go_on.set()
        monkeypatch.undo()
        async with chat.client("/ws/chat") as client:
            await client.send(request())
            await client.expect_until("done")
