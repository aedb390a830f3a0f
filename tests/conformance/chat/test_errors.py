"""Errors of chat in the words of both doors, a row for each kind."""

import json
from typing import Any

import pytest

from inference_service.interface.engine import Failure, SessionFailed
from tests.conformance.support.chat_words import (
    CHAT,
    REALTIME,
    USER,
    append,
    begin,
    chat_error,
    request,
)
from tests.conformance.support.client import TEXT, Event, kinds
from tests.conformance.support.match import With, error
from tests.conformance.support.stack import Stack, chatting_worker, running_stack
from tests.support.scripted_engine import Play, Script, write
from ws_adapter.web.message import SMALL_MESSAGE

SAYS = write("Seven.")


async def answered(stack: Stack, event: Any) -> tuple[list[Event], int | None]:
    """Return the events of `/ws/chat` after a request, and its close code."""
    async with stack.client(CHAT) as client:
        await client.send(event)
        return await client.end()


@pytest.mark.parametrize(
    ("reason", "code", "close"),
    [
        ("INPUT_TOO_LONG", "invalid_payload", 1008),
        ("INFERENCE_FAILED", "inference_error", 1011),
    ],
)
async def test_item_errors(chatter: Stack, reason: str, code: str, close: int) -> None:
    refused = Play(refused=Failure(reason, "canary-4711"))
    events, closed = await answered(chatter, request(refused))

    assert events[-1] == chat_error(code)
    assert "canary" not in events[-1]["error"]
    assert closed == close


async def test_item_errors_leave_the_session_open(chatter: Stack) -> None:
    async with chatter.client(REALTIME) as client:
        await begin(client)
        await client.send(append(Play(refused=Failure("INPUT_TOO_LONG", "")), input_id="in-1"))
        assert await client.next() == error("invalid_payload", input_id="in-1")
        assert await client.next() == With(type="response.done", reason="error", input_id="in-1", text="")
        await client.send(append(SAYS))
        assert (await client.until("response.done"))[-1]["reason"] == "turn_end"


async def test_session_that_fails_during_a_turn(chatter: Stack) -> None:
    play = Play(fails_session=SessionFailed("KV_EXHAUSTED", "canary-4711"))
    events, closed = await answered(chatter, request(play))
    assert events[-1] == chat_error("inference_error")
    assert "canary" not in json.dumps(events)
    assert closed == 1013

    async with chatter.client(REALTIME) as client:
        await begin(client)
        await client.send(append(play))
        failed = error("inference_error", side="server_error")
        assert await client.end() == ([failed, With(type="session.closed", reason="backend_error")], 1013)


async def test_config_that_the_worker_refuses(chatter: Stack) -> None:
    script = Script(refuses=SessionFailed("CONFIG_INVALID", "canary-4711")).as_prompt()
    async with chatter.client(REALTIME) as client:
        await client.expect("session.queue_done")
        await client.send({"type": "session.init", "payload": {"system_prompt": script}})
        events, closed = await client.end()

    assert kinds(events) == ["error:invalid_payload", "session.closed"]
    assert closed == 1008


async def test_worker_that_is_lost() -> None:
    with chatting_worker(2) as worker, running_stack(worker) as stack:
        events, closed = await answered(stack, request(Play(breaks_device=True)))
        assert events[-1] == chat_error("inference_error")
        assert closed == 1011


async def test_queue_full() -> None:
    with chatting_worker(1) as worker, running_stack(worker, options=("--queue-capacity", "1")) as stack:
        async with stack.client(CHAT) as holder, stack.client(CHAT) as waiting:
            await holder.send(request(Play(hold="generate"), key="full"))
            await holder.expect("prefill_done")
            await waiting.send(request(SAYS))
            await waiting.expect("queued")
            assert await answered(stack, request(SAYS)) == ([chat_error("queue_full")], 1013)
            async with stack.client(REALTIME) as client:
                assert await client.end() == ([error("queue_full", side="server_error")], 1013)
            worker.release("full", "generate", 1)
            await waiting.until("done")


async def test_adapter_shutdown() -> None:
    with chatting_worker(1) as worker, running_stack(worker) as stack:
        async with (
            stack.client(CHAT) as running,
            stack.client(CHAT) as waiting,
            stack.client(CHAT) as silent,
        ):
            await running.send(request(Play(says=(("Seven.", 0.0),), hold="generate"), key="end"))
            await running.expect("prefill_done")
            await waiting.send(request(SAYS))
            await waiting.expect("queued")
            stack.process.terminate()
            waiting.ignored = {"queue_update"}
            for client in (waiting, silent):
                assert await client.end() == ([chat_error("service_unavailable")], 1013)
            worker.release("end", "generate", 1)
            events, code = await running.end()
            assert (events[-1]["type"], code) == ("done", 1000)


@pytest.mark.parametrize("target", [CHAT, REALTIME])
async def test_mode_that_no_worker_serves(stack: Stack, target: str) -> None:
    async with stack.client(target) as client:
        events, code = await client.end()

    assert kinds(events) == ["error:unsupported_mode"]
    assert code == 1008


@pytest.mark.parametrize("frame", ["{", '{"messages": NaN}'])
async def test_not_json(chatter: Stack, frame: str) -> None:
    assert await answered(chatter, frame) == ([chat_error("invalid_json")], 1003)


@pytest.mark.parametrize(
    ("event", "code", "told"),
    [
        ({}, "missing_field", "messages is missing"),
        (
            {"messages": [USER], "generation": {"top_p": 1.5}},
            "invalid_payload",
            "generation.top_p: expected a number",
        ),
    ],
    ids=["missing", "invalid"],
)
async def test_wrong_value(chatter: Stack, event: Event, code: str, told: str) -> None:
    events, close = await answered(chatter, event)
    assert events == [chat_error(code)]
    assert events[0]["error"].startswith(told)
    assert close == 1008

    async with chatter.client(REALTIME) as client:
        await begin(client)
        refused = await client.ask({"type": "input.append", "input": event})
        assert refused["error"]["code"] == code
        assert refused["error"]["param"].startswith("input.")
        assert told in refused["error"]["message"]


async def test_more_than_1000_events(chatter: Stack) -> None:
    async with chatter.raw_client(CHAT) as client:
        await client.send(request(Play(says=(("Seven.", 0.0),), hold="generate"), key="many"))
        await client.expect("prefill_done")
        await client.flood(TEXT, b"{" + b" " * SMALL_MESSAGE + b"}", 1100)
        chatter.worker.release("many", "generate", 1)
        events, code, _ = await client.end()
        assert (kinds(events)[-1], code) == ("done", 1000)

    async with chatter.raw_client(CHAT) as client:
        await client.flood(TEXT, b"{}", 5000)  # 200 a second are forgiven
        events, code, _ = await client.end()
        assert (kinds(events), code) == (["error:rate_limited"], 1008)


async def test_slow_reader(chatter: Stack) -> None:
    flood = Play(says=(("", 60.0), ("", 60.0)), end=SAYS.end)
    async with chatter.raw_client(CHAT) as reader:
        await reader.send(request(flood))
        await chatter.until(free_slots=24)
