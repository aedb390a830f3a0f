"""Chats on real sockets with a real worker: slots, clocks, large uploads, and clients that leave."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

from inference_service.interface.engine import SessionFailed
from inference_service.interface.setups import Mode
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import (
    EVERYTHING,
    INFO,
    Play,
    ScriptedEngine,
    hang,
    running_worker,
    turn_end,
    write,
)
from tests.ws_adapter.support.chat_conversation import USER, append, f32, request, user
from tests.ws_adapter.support.conversation import CLOSE, kinds
from tests.ws_adapter.support.stage import Client, ManualClock, Stage, running_adapter, until
from ws_adapter.protocol.core.actions import Run
from ws_adapter.session import session
from ws_adapter.worker.session_streams import prefill_bytes

SAYS = write("Seven.")
TEXT_ONLY = replace(
    INFO,
    modes=frozenset({Mode.CHAT, Mode.TOKENS}),
    input_sample_rate_hz=0,
    output_sample_rate_hz=0,
    speaks=False,
)


@dataclass(frozen=True)
class ChatStage:
    """A running adapter and its worker."""

    stage: Stage
    engine: ScriptedEngine

    @asynccontextmanager
    async def client(self, path: str) -> AsyncIterator[Client]:
        async with self.stage.client(self.stage.address.replace("http", "ws", 1) + path) as client:
            yield client

    @asynccontextmanager
    async def chat(self, payload: Any = None) -> AsyncIterator[Client]:
        """A client of G3 that is ready."""
        async with self.client("/v1/realtime?mode=chat") as client:
            await client.begin(payload)
            yield client


@asynccontextmanager
async def chatting(
    *script: Play, slots: int = 1, info: Any = EVERYTHING, ends: bool = False, **options: Any
) -> AsyncIterator[ChatStage]:
    """An adapter in front of a worker that plays `script` in each session.

    All slots are free at the end, unless the test `ends` the adapter: then there is nobody to ask.
    """
    engine = ScriptedEngine(*(script or (SAYS,)), slots=slots, info=info, repeat=True)
    async with (
        running_worker(engine, slots=slots) as worker,
        running_adapter(worker.address, **options) as stage,
    ):
        yield ChatStage(stage, engine)
        if not ends:
            await stage.until(free_slots=slots)


async def test_a_request_and_its_answer() -> None:
    async with chatting() as chat, chat.client("/ws/chat") as client:
        await client.send(request())
        events, close = await client.end()

    assert kinds(events) == ["prefill_done", "chunk", "done"]
    assert close == 1000


async def test_each_turn_is_a_session_of_the_worker() -> None:
    async with chatting() as chat, chat.chat() as client:
        for _ in range(3):
            await client.send(append())
            await client.expect_until("response.done")
            await chat.stage.until(free_slots=1)

    names = [session.session_id for session in chat.engine.sessions]
    assert len(set(names)) == 3
    assert all(session.is_closed for session in chat.engine.sessions)


async def test_next_turn_does_not_wait_in_the_queue_for_its_own_slot() -> None:
    async with chatting() as chat, chat.chat() as client:
        await client.send(*[append() for _ in range(5)])
        answered = [await client.expect_until("response.done") for _ in range(5)]

    assert len({event["input_id"] for event in answered}) == 5
    assert "session.queued" not in kinds(client.events)


@pytest.mark.parametrize("path", ["/ws/chat", "/v1/realtime?mode=chat"])
@pytest.mark.parametrize("step", ["prefill", "generate"])
async def test_client_that_vanishes_frees_the_slot_at_once(path: str, step: str) -> None:
    async with chatting(hang(step)) as chat:
        async with chat.client(path) as client:
            if path == "/ws/chat":
                await client.send(request())
            else:
                await client.begin()
                await client.send(append())
            await until(lambda: chat.engine.sessions and chat.engine.session.given)
            client.vanish()
        await chat.stage.until(free_slots=1)
        assert ("cancel", 1) in chat.engine.session.calls


async def test_client_that_vanishes_in_the_queue_leaves_no_gap() -> None:
    async with chatting(hang("generate")) as chat:
        async with chat.client("/ws/chat") as holder, chat.client("/ws/chat") as client:
            await holder.send(request())
            await holder.expect("prefill_done")
            await client.send(request())
            await client.expect("queued")
            client.vanish()
            _, _, queue = await chat.stage.request("/api/queue")
            while queue["queue_length"]:
                _, _, queue = await chat.stage.request("/api/queue")
            chat.engine.session.release("generate", 1)
            await holder.expect("done")


async def test_slot_goes_back_without_input() -> None:
    clock = ManualClock()
    async with chatting(clock=clock) as chat, chat.chat() as client:
        await chat.stage.until(free_slots=0)
        await clock.advance(20.0)
        await chat.stage.until(free_slots=1)
        await client.send(append())
        await client.expect_until("response.done")


async def test_idle_chat_ends() -> None:
    clock = ManualClock()
    async with chatting(clock=clock, chat_idle_s=60.0) as chat, chat.chat() as client:
        await clock.advance(60.0)
        closed = await client.next()

        assert (closed["type"], closed["reason"]) == ("session.closed", "timeout")


async def test_no_request_in_time() -> None:
    clock = ManualClock()
    async with chatting(clock=clock) as chat, chat.client("/ws/chat") as client:
        await until(lambda: clock.timers)
        await clock.advance(20.0)
        events, close = await client.end()

    assert (events[0]["code"], close) == ("init_timeout", 1008)


async def test_model_without_a_voice_writes_and_says_so() -> None:
    async with chatting(info=TEXT_ONLY) as chat, chat.client("/ws/chat") as client:
        await client.send(request(tts={"enabled": True}))
        events, close = await client.end()

    assert events[-1]["unsupported_fields"] == ["tts.enabled"]
    assert close == 1000


@pytest.mark.parametrize(
    ("part", "path"),
    [({"type": "audio", "data": f32()}, "messages[0].content[0]")],
)
async def test_model_that_cannot_take_a_part(part: Any, path: str) -> None:
    async with chatting(info=TEXT_ONLY) as chat, chat.client("/ws/chat") as client:
        await client.send(request(user(part)))
        events, close = await client.end()

    assert events[-1]["code"] == "invalid_payload"
    assert events[-1]["error"].startswith(path)
    assert events[-1]["error"].endswith(": the model cannot take this kind of input")
    assert close == 1008


@pytest.mark.parametrize(
    "path", ["/v1/realtime?mode=audio", "/v1/realtime", "/ws/duplex", "/ws/duplex/adx_1"]
)
async def test_mode_that_the_workers_do_not_serve(path: str) -> None:
    async with chatting(info=TEXT_ONLY) as chat, chat.client(path) as client:
        events, close = await client.end()

    body = events[0] if isinstance(events[0]["error"], str) else events[0]["error"]
    assert body["code"] == "unsupported_mode"
    assert "choose another by ?mode=chat" in body["message"]
    assert close == 1008


@pytest.mark.parametrize("path", ["/ws/chat", "/v1/realtime?mode=chat"])
async def test_chat_where_no_worker_chats(path: str) -> None:
    async with chatting(info=INFO) as chat, chat.client(path) as client:
        events, close = await client.end()

    body = events[0] if isinstance(events[0]["error"], str) else events[0]["error"]
    assert (body["code"], close) == ("unsupported_mode", 1008)


async def test_default_mode_may_be_chat() -> None:
    async with chatting(default_realtime_mode="chat") as chat, chat.client("/v1/realtime") as client:
        assert (await client.begin())["mode"] == "turn_based"


async def test_chats_take_larger_messages_than_others() -> None:
    long = request({"role": "user", "content": "x" * 20_000})
    async with chatting(max_message_mib=0.01) as chat:
        async with chat.client("/ws/chat") as client:
            await client.send(long)
            await client.expect("prefill_done")
            await client.expect_until("done")
        await chat.stage.until(free_slots=1)
        async with chat.client("/v1/realtime?mode=audio") as client:
            await client.expect("session.queue_done")
            await client.socket.send(json.dumps(long))
            assert await client.end() == ([], 1009)


async def test_large_turn_is_serialised_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[threading.Thread, int]] = []

    def noted(run: Run, traceparent: str) -> bytes:
        message = prefill_bytes(run, traceparent)
        made.append((threading.current_thread(), len(message)))
        return message

    monkeypatch.setattr(session, "prefill_bytes", noted)
    async with chatting() as chat, chat.client("/ws/chat") as client:
        await client.send(request({"role": "user", "content": "x" * 3 * 2**20}))
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
            await client.send(request({"role": "user", "content": "x" * 3 * 2**20}))
            await asyncio.to_thread(begun.wait, PATIENCE_S)
        await chat.stage.until(free_slots=1)
        go_on.set()
        monkeypatch.undo()
        async with chat.client("/ws/chat") as client:
            await client.send(request())
            await client.expect_until("done")


async def test_chat_message_over_its_limit() -> None:
    async with chatting(max_chat_message_mib=0.01) as chat, chat.client("/ws/chat") as client:
        await client.send(request({"role": "user", "content": "x" * 20_000}))
        events, close = await client.end()

    assert (events, close) == ([], 1009)


async def test_worker_that_does_not_know_the_model_any_more() -> None:
    refusal = SessionFailed("KV_EXHAUSTED", "no room")
    engine = ScriptedEngine(SAYS, slots=1, info=EVERYTHING, refuses=refusal)
    async with running_worker(engine, slots=1) as worker, running_adapter(worker.address) as stage:
        async with ChatStage(stage, engine).client("/ws/chat") as client:
            await client.send(request())
            events, close = await client.end()
        await stage.until(free_slots=1)

    assert (kinds_of_chat(events), close) == (["inference_error"], 1013)


def kinds_of_chat(events: list[Any]) -> list[str]:
    return [event["code"] for event in events]


async def test_server_that_ends_lets_an_answer_end() -> None:
    async with chatting(hang("generate"), ends=True) as chat, chat.client("/ws/chat") as client:
        await client.send(request())
        await client.expect("prefill_done")
        chat.stage.adapter.interrupt()
        await until(lambda: chat.engine.sessions)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status, _, _ = await chat.stage.request("/readyz")
                if status == 503:
                    break
        chat.engine.session.release("generate", 1)
        events, close = await client.end()

    assert (events[-1]["type"], close) == ("done", 1000)


async def test_client_that_does_not_read_is_cut() -> None:
    # More than its buffers and its outbox together take, so that it cannot go unnoticed.
    flood = Play(says=tuple(("", 10.0) for _ in range(8)), end=turn_end().end)
    async with chatting(flood, outbox_mib=0.1, max_chat_message_mib=0.5) as chat:
        async with chat.client("/ws/chat") as client:
            client.socket.transport.pause_reading()
            await client.socket.send(json.dumps(request(USER, tts={"enabled": True})))
            await until(lambda: chat.engine.sessions and chat.engine.session.is_closed)
            client.socket.transport.resume_reading()
            client.vanish()


async def test_close_cancels_the_turn() -> None:
    async with chatting(hang("generate")) as chat, chat.chat() as client:
        await client.send(append())
        await until(lambda: chat.engine.session.given)
        await client.send(CLOSE)
        events, close = await client.end()

        assert (kinds(events), close) == (["session.closed"], 1000)
        await chat.stage.until(free_slots=1)
        assert ("cancel", 1) in chat.engine.session.calls
