"""Chats on real sockets with a real worker: slots, modes, large uploads, and clients that leave meanwhile."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from inference_service.interface.setups import Mode
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import EVERYTHING, INFO, ScriptedEngine, running_worker, write
from tests.ws_adapter.support.chat_conversation import append, request
from tests.ws_adapter.support.conversation import kinds
from tests.ws_adapter.support.stage import Client, Stage, running_adapter
from ws_adapter.protocol.core.actions import Run
from ws_adapter.session import session
from ws_adapter.worker.session_streams import prefill_bytes

TEXT_ONLY = replace(
    INFO,
    modes=frozenset({Mode.CHAT, Mode.TOKENS}),
    input_sample_rate_hz=0,
    output_sample_rate_hz=0,
    speaks=False,
)
LARGE = request({"role": "user", "content": "x" * 3 * 2**20})


@dataclass(frozen=True)
class ChatStage:
    """A running adapter and its worker."""

    stage: Stage

    @asynccontextmanager
    async def client(self, path: str) -> AsyncIterator[Client]:
        async with self.stage.client(self.stage.address.replace("http", "ws", 1) + path) as client:
            yield client


@asynccontextmanager
async def chatting(info: Any = EVERYTHING, **options: Any) -> AsyncIterator[ChatStage]:
    """An adapter in front of a worker with one slot, which is free at the end."""
    engine = ScriptedEngine(write("Seven."), slots=1, info=info, repeat=True)
    async with running_worker(engine, slots=1) as worker, running_adapter(worker.address, **options) as stage:
        yield ChatStage(stage)
        await stage.until(free_slots=1)


async def test_next_turn_does_not_wait_in_the_queue_for_its_own_slot() -> None:
    async with chatting() as chat, chat.client("/v1/realtime?mode=chat") as client:
        await client.begin()
        await client.send(*[append() for _ in range(5)])
        answered = [await client.expect_until("response.done") for _ in range(5)]
    assert len({event["input_id"] for event in answered}) == 5
    assert "session.queued" not in kinds(client.events)


async def test_mode_that_the_workers_do_not_serve() -> None:
    async with chatting(TEXT_ONLY) as chat:
        for path in ("/v1/realtime?mode=audio", "/v1/realtime", "/ws/duplex", "/ws/duplex/adx_1"):
            async with chat.client(path) as client:
                (event,), close = await client.end()
            body = event if isinstance(event["error"], str) else event["error"]
            assert (body["code"], close) == ("unsupported_mode", 1008)
            assert "choose another by ?mode=chat" in body["message"]


async def test_default_mode_may_be_chat() -> None:
    async with chatting(default_realtime_mode="chat") as chat, chat.client("/v1/realtime") as client:
        assert (await client.begin())["mode"] == "turn_based"


@pytest.mark.parametrize("options", [{"max_message_mib": 0.01}, {"max_chat_message_mib": 0.01}], ids=str)
async def test_chats_have_a_limit_of_their_own_for_messages(options: dict[str, float]) -> None:
    long = json.dumps(request({"role": "user", "content": "x" * 20_000}))
    other = {"max_message_mib": "/v1/realtime?mode=audio", "max_chat_message_mib": "/ws/chat"}
    async with chatting(**options) as chat:
        if "max_message_mib" in options:
            async with chat.client("/ws/chat") as client:
                await client.socket.send(long)
                await client.expect_until("done")
            await chat.stage.until(free_slots=1)
        async with chat.client(other[next(iter(options))]) as client:
            await client.socket.send(long)
            assert (await client.end())[1] == 1009


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
        await chat.stage.until(free_slots=1)
        go_on.set()
        monkeypatch.undo()
        async with chat.client("/ws/chat") as client:
            await client.send(request())
            await client.expect_until("done")
