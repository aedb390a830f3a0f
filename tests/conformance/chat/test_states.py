"""A row for each state of chat, on both doors; the whole tables are in `tests/ws_adapter/protocol/chat`."""

import json
from typing import Any

import pytest

from tests.conformance.support.chat_words import (
    CHAT,
    CLOSE,
    REALTIME,
    USER,
    append,
    begin,
    chat_error,
    created,
    request,
)
from tests.conformance.support.client import Event, kinds
from tests.conformance.support.clockwork import clockwork
from tests.conformance.support.match import With, error
from tests.conformance.support.stack import Stack
from tests.support.scripted_engine import EVERYTHING, Script, hang, write

SAYS = write("Seven.")
INIT: Event = {"type": "session.init", "payload": {}}
UPDATE: Event = {"type": "session.update", "session": {"instructions": "Be brief."}}
UNKNOWN: Event = {"type": "what"}


async def test_request_that_does_not_come_in_time() -> None:
    async with clockwork(info=EVERYTHING) as still, still.client(CHAT) as client:
        _, _, told = await still.stage.request("/readyz")
        await still.advance(19.9)
        assert told["free_slots"] == 2
        await still.advance(0.2)
        assert await client.end() == ([chat_error("init_timeout")], 1008)


@pytest.mark.parametrize("frame", ["{", "[]", b"\x00", json.dumps(request(SAYS))])
async def test_frames_after_the_request_are_ignored(narrow_chatter: Stack, frame: Any) -> None:
    """In the queue, and while it is answered."""
    async with narrow_chatter.client(CHAT) as holder, narrow_chatter.client(CHAT) as client:
        await holder.send(request(hang("generate"), key="ignored"))
        await holder.expect("prefill_done")
        client.ignored = {"queue_update"}
        await client.send(request(hang("generate"), key="ignored2"))
        await client.expect("queued")
        await client.send(frame)
        narrow_chatter.worker.release("ignored", "generate", 1)
        assert kinds((await holder.end())[0]) == ["done"]
        await client.expect("queue_done", "prefill_done")
        await client.send(frame)
        narrow_chatter.worker.release("ignored2", "generate", 1)
        events, code = await client.end()
        assert (kinds(events), code) == (["done"], 1000)


async def test_dropped_connection_in_the_queue_releases_its_ticket(narrow_chatter: Stack) -> None:
    async with narrow_chatter.client(CHAT) as holder:
        await holder.send(request(hang("generate"), key="gone"))
        await holder.expect("prefill_done")
        async with narrow_chatter.client(CHAT) as client:
            await client.send(request(SAYS))
            await client.expect("queued")
            client.vanish()
        await narrow_chatter.until_queue(0)
        narrow_chatter.worker.release("gone", "generate", 1)
        await holder.expect("done")


@pytest.mark.parametrize("step", ["prefill", "generate"])
async def test_dropped_connection_cancels_the_answer(narrow_chatter: Stack, step: str) -> None:
    """On both doors; the next client gets the slot."""
    async with narrow_chatter.client(CHAT) as client:
        await client.send(request(hang(step)))
        await narrow_chatter.until(free_slots=0)
        client.vanish()
    await narrow_chatter.until(free_slots=1)
    async with narrow_chatter.client(REALTIME) as client:
        await begin(client)
        await client.send(append(hang(step)))
        await narrow_chatter.until(free_slots=0)
        client.vanish()
    await narrow_chatter.until(free_slots=1)
    async with narrow_chatter.client(CHAT) as client:
        await client.send(request(SAYS))
        assert (await client.end())[1] == 1000


async def test_queued_init_and_input_are_held(narrow_chatter: Stack) -> None:
    async with narrow_chatter.client(REALTIME) as holder:
        await begin(holder)
        async with narrow_chatter.client(REALTIME) as client:
            client.ignored = {"session.queue_update"}
            await client.expect("session.queued")
            assert await client.ask(UNKNOWN) == error("unknown_event", "type")
            assert await client.ask(append(SAYS)) == error("not_ready")
            assert await client.ask({"type": "session.init"}) == error("missing_field", "payload")
            await client.send(INIT, append(SAYS, input_id="held"))
            assert await client.ask(INIT) == error("invalid_event")
            await holder.send(CLOSE)
            await holder.end()
            await client.expect("session.queue_done", "session.created")
            assert (await client.until("response.done"))[-1]["input_id"] == "held"


async def test_connected_session_waits_for_a_valid_init(chatter: Stack) -> None:
    async with chatter.client(REALTIME) as client:
        await client.expect("session.queue_done")
        assert await client.ask(append(SAYS)) == error("not_ready")
        assert await client.ask(UNKNOWN) == error("unknown_event", "type")
        assert await client.ask(UPDATE) == error("invalid_event")
        bad = {"type": "session.init", "payload": {"seed": -1}}
        assert await client.ask(bad) == error("invalid_payload", "payload.seed")
        assert await client.ask(INIT) == created()


async def test_connected_session_without_an_init_ends_in_time() -> None:
    async with clockwork(info=EVERYTHING) as still, still.client(REALTIME) as client:
        await client.expect("session.queue_done")
        await still.advance(20.0)
        assert await client.end() == ([With(type="session.closed", reason="timeout")], 1000)


@pytest.mark.parametrize("is_closed", [False, True], ids=["ready", "closed"])
async def test_configuring_session_holds_input(chatter: Stack, is_closed: bool) -> None:
    key = f"slow-{is_closed}"
    script = {"system_prompt": Script(slow_start=True, key=key).as_prompt()}
    async with chatter.client(REALTIME) as client:
        await client.expect("session.queue_done")
        await client.send({"type": "session.init", "payload": script})
        assert await client.ask(INIT) == error("invalid_event")
        assert await client.ask(UNKNOWN) == error("unknown_event", "type")
        await client.send(append(SAYS, input_id="held"))
        if is_closed:
            await client.send(CLOSE)
            assert await client.end() == ([With(type="session.closed", reason="user_stop")], 1000)
            return
        chatter.worker.release(key, "ready", 0)
        await client.expect("session.created")
        assert (await client.until("response.done"))[-1]["input_id"] == "held"


async def test_active_session_refuses_another_init_and_bad_input(chatter: Stack) -> None:
    async with chatter.client(REALTIME) as client:
        await begin(client)
        assert await client.ask(INIT) == error("invalid_event")
        assert await client.ask(UPDATE) == error("invalid_event")
        assert await client.ask(UNKNOWN) == error("unknown_event", "type")
        bad = {"type": "input.append", "input": {"messages": [USER], "streaming": 7, "input_id": "in-1"}}
        assert await client.ask(bad) == error("invalid_payload", "input.streaming")
        await client.send(append(SAYS))
        await client.until("response.done")
        await client.send(CLOSE)
        assert await client.end() == ([With(type="session.closed", reason="user_stop")], 1000)


async def test_active_close_cancels_the_answer(narrow_chatter: Stack) -> None:
    async with narrow_chatter.client(REALTIME) as client:
        await begin(client)
        await client.send(append(hang("generate")), CLOSE)
        assert await client.end() == ([With(type="session.closed", reason="user_stop")], 1000)
    await narrow_chatter.until(free_slots=1)
