"""Sections 3.5 and 5: every cell of the state tables of chat."""

import json
from typing import Any

import pytest

from tests.conformance.support.chat_words import (
    CHAT,
    CLOSE,
    PREFILL_DONE,
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
from tests.support.scripted_engine import EVERYTHING, fails, hang, write

SAYS = write("Seven.")
INIT: Event = {"type": "session.init", "payload": {}}
UPDATE: Event = {"type": "session.update", "session": {"instructions": "Be brief."}}

# ------------------------------------------------------------------------------------------- 5: /ws/chat


async def test_wait_request_frame(chatter: Stack) -> None:
    """5 WAIT_REQUEST/frame: valid: enqueue as `chat`; the answer follows."""
    async with chatter.client(CHAT) as client:
        await client.send(request(SAYS))
        assert await client.next() == PREFILL_DONE
        assert (await client.end())[1] == 1000


async def test_wait_request_invalid_frame(chatter: Stack) -> None:
    """5 WAIT_REQUEST/frame: invalid: `error`, 1008."""
    async with chatter.client(CHAT) as client:
        await client.send({"messages": [{"role": "assistant", "content": "Hm."}]})
        assert await client.end() == (
            [chat_error("invalid_payload", "messages: at least one user message is needed")],
            1008,
        )


async def test_wait_request_no_frame_in_time() -> None:
    """5 WAIT_REQUEST/no frame in time, 9.1 init: from open; `error{init_timeout}`, 1008."""
    async with clockwork(info=EVERYTHING) as still, still.client(CHAT) as client:
        _, _, told = await still.stage.request("/readyz")
        await still.advance(19.9)
        assert told["free_slots"] == 2
        await still.advance(0.2)
        assert await client.end() == ([chat_error("init_timeout")], 1008)


async def test_wait_request_disconnect(narrow_chatter: Stack) -> None:
    """5 WAIT_REQUEST/disconnect: free."""
    async with narrow_chatter.client(CHAT) as client:
        await narrow_chatter.until(free_slots=1)
        client.vanish()
    await narrow_chatter.until(free_slots=1)


@pytest.mark.parametrize("frame", ["{", "[]", b"\x00", json.dumps(request(SAYS))])
async def test_frames_after_the_request_are_ignored(narrow_chatter: Stack, frame: Any) -> None:
    """5 QUEUED, GENERATE/frame: ignored; PREFILL is looked at where nothing moves, in `tests/ws_adapter`."""
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


async def test_queued_disconnect(narrow_chatter: Stack) -> None:
    """5 QUEUED/disconnect: the ticket is released at once; row 11."""
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
async def test_running_disconnect(narrow_chatter: Stack, step: str) -> None:
    """5 PREFILL, GENERATE/disconnect: slot released at once, generation cancelled; the next one gets it."""
    async with narrow_chatter.client(CHAT) as client:
        await client.send(request(hang(step)))
        await narrow_chatter.until(free_slots=0)
        client.vanish()
    await narrow_chatter.until(free_slots=1)
    async with narrow_chatter.client(CHAT) as client:
        await client.send(request(SAYS))
        assert (await client.end())[1] == 1000


async def test_running_failure(chatter: Stack) -> None:
    """5 QUEUED, PREFILL, GENERATE/failure: `error`, close per 7.1."""
    async with chatter.client(CHAT) as client:
        await client.send(request(fails()))
        events, code = await client.end()

    assert (events, code) == ([PREFILL_DONE, chat_error("inference_error")], 1011)


async def test_done_frame(chatter: Stack) -> None:
    """5 DONE/frame: ignored."""
    async with chatter.raw_client(CHAT) as client:
        await client.send(request(SAYS), request(SAYS))
        events, code, _ = await client.end()

    assert (events[-1]["type"], code) == ("done", 1000)


# ------------------------------------------------------------------------------------------ 3.5: G3 chat


async def test_queued_init_and_input_are_held(narrow_chatter: Stack) -> None:
    """3.5 QUEUED/init: validate, hold; QUEUED/input: held behind it, else `not_ready`."""
    async with narrow_chatter.client(REALTIME) as holder:
        await begin(holder)
        async with narrow_chatter.client(REALTIME) as client:
            client.ignored = {"session.queue_update"}
            await client.expect("session.queued")
            assert await client.ask(append(SAYS)) == error("not_ready")
            assert await client.ask({"type": "session.init"}) == error("missing_field", "payload")
            await client.send(INIT, append(SAYS, input_id="held"))
            assert await client.ask(INIT) == error("invalid_event")
            await holder.send(CLOSE)
            await holder.end()
            await client.expect("session.queue_done", "session.created")
            assert (await client.until("response.done"))[-1]["input_id"] == "held"


async def test_queued_close_and_unknown(narrow_chatter: Stack) -> None:
    """3.5 QUEUED/session.close: `session.closed`, 1000, ticket removed; QUEUED/unknown type."""
    async with narrow_chatter.client(REALTIME) as holder:
        await begin(holder)
        async with narrow_chatter.client(REALTIME) as client:
            client.ignored = {"session.queue_update"}
            await client.expect("session.queued")
            assert await client.ask({"type": "what"}) == error("unknown_event", "type")
            await client.send(CLOSE)
            assert await client.end() == ([With(type="session.closed", reason="user_stop")], 1000)
        await narrow_chatter.until_queue(0)


async def test_connected(chatter: Stack) -> None:
    """3.5 CONNECTED/init: CONFIGURING, invalid: error, stay; CONNECTED/input; CONNECTED/unknown type."""
    async with chatter.client(REALTIME) as client:
        await client.expect("session.queue_done")
        assert await client.ask(append(SAYS)) == error("not_ready")
        assert await client.ask({"type": "what"}) == error("unknown_event", "type")
        assert await client.ask(UPDATE) == error("invalid_event")
        bad = {"type": "session.init", "payload": {"seed": -1}}
        assert await client.ask(bad) == error("invalid_payload", "payload.seed")
        assert await client.ask(INIT) == created()


async def test_connected_close(chatter: Stack) -> None:
    """3.5 CONNECTED/session.close: `session.closed`, 1000."""
    async with chatter.client(REALTIME) as client:
        await client.expect("session.queue_done")
        await client.send({"type": "session.close", "reason": "My Reason"})
        assert await client.end() == ([With(type="session.closed", reason="client_closed")], 1000)


async def test_connected_init_timeout() -> None:
    """3.5 CONNECTED/other, 9.1 init: init timeout: `session.closed{timeout}`, 1000."""
    async with clockwork(info=EVERYTHING) as still, still.client(REALTIME) as client:
        await client.expect("session.queue_done")
        await still.advance(20.0)
        assert await client.end() == ([With(type="session.closed", reason="timeout")], 1000)


async def test_configuring(chatter: Stack) -> None:
    """3.5 CONFIGURING/init, CONFIGURING/input, CONFIGURING/unknown type; `SessionReady`: created."""
    script = {"system_prompt": json.dumps({"plays": [], "refuses": None, "slow_start": True, "key": "slow"})}
    async with chatter.client(REALTIME) as client:
        await client.expect("session.queue_done")
        await client.send({"type": "session.init", "payload": script})
        assert await client.ask(INIT) == error("invalid_event")
        assert await client.ask({"type": "what"}) == error("unknown_event", "type")
        await client.send(append(SAYS, input_id="held"))
        chatter.worker.release("slow", "ready", 0)
        await client.expect("session.created")
        assert (await client.until("response.done"))[-1]["input_id"] == "held"


async def test_configuring_close(chatter: Stack) -> None:
    """3.5 CONFIGURING/session.close: cancel, `session.closed`, 1000."""
    script = {"system_prompt": json.dumps({"plays": [], "refuses": None, "slow_start": True})}
    async with chatter.client(REALTIME) as client:
        await client.expect("session.queue_done")
        await client.send({"type": "session.init", "payload": script}, CLOSE)
        assert await client.end() == ([With(type="session.closed", reason="user_stop")], 1000)


async def test_active(chatter: Stack) -> None:
    """3.5 ACTIVE/init, ACTIVE/input (invalid: nothing applied), ACTIVE/unknown type, ACTIVE/session.close."""
    async with chatter.client(REALTIME) as client:
        await begin(client)
        assert await client.ask(INIT) == error("invalid_event")
        assert await client.ask(UPDATE) == error("invalid_event")
        assert await client.ask({"type": "what"}) == error("unknown_event", "type")
        bad = {"type": "input.append", "input": {"messages": [USER], "streaming": 7, "input_id": "in-1"}}
        assert await client.ask(bad) == error("invalid_payload", "input.streaming")
        await client.send(append(SAYS))
        await client.until("response.done")
        await client.send(CLOSE)
        assert await client.end() == ([With(type="session.closed", reason="user_stop")], 1000)


async def test_active_close_during_a_turn(narrow_chatter: Stack) -> None:
    """3.5 CLOSING: running unit cancelled; `session.closed`, Close; the slot is free."""
    async with narrow_chatter.client(REALTIME) as client:
        await begin(client)
        await client.send(append(hang("generate")), CLOSE)
        assert await client.end() == ([With(type="session.closed", reason="user_stop")], 1000)
    await narrow_chatter.until(free_slots=1)


async def test_active_disconnect_during_a_turn(narrow_chatter: Stack) -> None:
    """3.5: a dropped connection: no event, slot released at once, running unit cancelled; row 11."""
    async with narrow_chatter.client(REALTIME) as client:
        await begin(client)
        await client.send(append(hang("generate")))
        await narrow_chatter.until(free_slots=0)
        client.vanish()
    await narrow_chatter.until(free_slots=1)


async def test_active_idle() -> None:
    """9.1 idle, G3 chat: 600 s without frame, no turn running: `session.closed{timeout}`, 1000."""
    async with clockwork(info=EVERYTHING) as still, still.client(REALTIME) as client:
        await begin(client)
        await client.send(append(SAYS))
        await client.until("response.done")
        await still.advance(599.0)
        assert await client.ask({"type": "what"}) == error("unknown_event", "type")
        await still.advance(600.0)
        assert await client.end() == ([With(type="session.closed", reason="timeout")], 1000)


async def test_active_has_no_session_limit() -> None:
    """9.1 session, chat and T: none."""
    async with clockwork(info=EVERYTHING) as still, still.client(REALTIME) as client:
        await begin(client)
        await client.send(append(hang("generate")))
        await still.stage.until(free_slots=1)
        await still.advance(10_000.0)
        still.session.release("generate", 1)
        await client.until("response.done")


async def test_slot_goes_back_after_init_timeout_s_without_input() -> None:
    """3.3 Chat: the slot goes back to the pool after `init_timeout_s` without input."""
    async with clockwork(info=EVERYTHING, slots=1) as still, still.client(REALTIME) as client:
        await begin(client)
        await still.stage.until(free_slots=0)
        await still.advance(20.0)
        await still.stage.until(free_slots=1)
        await client.send(append(SAYS))
        await client.until("response.done")
