"""A row for each state of `/ws/duplex`; the whole table is in `tests/ws_adapter/protocol/duplex`."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.conformance.support.client import Client, Event
from tests.conformance.support.clockwork import clockwork
from tests.conformance.support.duplex_words import (
    AUDIO,
    BARE,
    INTERRUPT,
    LABEL,
    OMNI,
    PAUSE,
    RESUME,
    STOP,
    UNKNOWN,
    begin,
    chunk,
    error,
    listens,
    prepare,
    speaks,
    stop,
    stopped,
    timeout,
    told,
    video_frame,
)
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import TELLS
from tests.support.scripted_engine import Script, hang, speak

PREPARED = {"type": "prepared", "prompt_length": 10, "session_id": LABEL}


@asynccontextmanager
async def waiting(narrow: Stack) -> AsyncIterator[tuple[Client, Client]]:
    """A client that has the only slot, and one that is QUEUED."""
    async with narrow.client(OMNI) as holder, narrow.client(OMNI) as client:
        await begin(holder)
        client.ignored = {"queue_update"}
        await client.expect("queued")
        yield holder, client


async def assert_not_ready(client: Client, *events: Event) -> None:
    for event in events:
        assert await client.ask(event) == error("not_ready")
    unknown = error("unknown_event", "Unknown message type: response.cancel")
    assert [await client.ask(event) for event in (UNKNOWN, {})] == [unknown, error("missing_field")]


async def test_queued_prepare_and_input_are_held(narrow: Stack) -> None:
    async with waiting(narrow) as (holder, client):
        await assert_not_ready(client, chunk(), video_frame(), PAUSE, RESUME, INTERRUPT)
        bad = error("invalid_payload", "config.top_k: expected an integer from 1 to 1000, got 0")
        assert await client.ask(prepare(config={"top_k": 0})) == bad
        await client.send(prepare(Script((TELLS,))), prepare(), video_frame(), chunk(level=0.2), chunk(8000))
        await stop(holder)

        assert await client.take(2) == [{"type": "queue_done"}, PREPARED]
        unit = told(await client.next())["units"][0]
        assert (unit["audio"], len(unit["frames"])) == ([0.2] * 4, 1)
        assert await client.next() == listens(2)


async def test_connected_session_waits_for_a_valid_prepare(stack: Stack) -> None:
    """Nothing of earlier input is kept."""
    async with stack.client(OMNI) as client:
        assert await client.next() == {"type": "queue_done"}
        for event in (chunk(), video_frame()):
            assert await client.ask(event) == error("not_ready", f"{event['type']} before prepare")
        await assert_not_ready(client, PAUSE, RESUME, INTERRUPT)
        assert await client.ask(prepare(max_slice_nums=10)) == error(
            "invalid_payload", "max_slice_nums: expected an integer from 1 to 9, got 10"
        )
        await client.send(prepare(Script((TELLS,))), chunk(level=0.2))
        assert await client.next() == PREPARED
        unit = told(await client.next())["units"][0]
        assert (unit["audio"], unit["frames"]) == ([0.2] * 4, [])


async def test_preparing_session_ignores_another_prepare_and_holds_input(stack: Stack) -> None:
    async with stack.client(OMNI) as client:
        await client.expect("queue_done")
        await client.send(prepare(Script((TELLS,), slow_start=True, key="D-held")))
        await client.send(prepare(Script((speak("Never."),))), video_frame(), chunk(level=0.2))
        assert await client.ask(chunk(level=99.0)) == error(
            "invalid_payload", "audio_base64: not float32 PCM in [-1, 1]: the peak is 99"
        )
        await assert_not_ready(client, PAUSE, RESUME, INTERRUPT)
        stack.worker.release("D-held", "ready", 0)
        assert await client.next() == PREPARED
        unit = told(await client.next())["units"][0]
        assert (unit["audio"], len(unit["frames"])) == ([0.2] * 4, 1)


async def test_active_session_refuses_another_prepare_and_is_interrupted(stack: Stack) -> None:
    async with stack.client(OMNI) as client:
        await begin(client, *[speak("Word")] * 3)
        assert await client.ask(prepare()) == error("invalid_event")
        await assert_not_ready(client)
        await client.send(chunk())
        assert await client.next() == speaks(1, "Word", 1.0)
        assert await client.ask(RESUME) == {"type": "resumed"}
        assert await client.ask(INTERRUPT) == {"type": "interrupted"}
        await client.send(chunk(), chunk())
        assert await client.take(2) == [listens(2), speaks(3, "Word", 1.0)]


async def test_stop_while_active_replaces_pending_answers(stack: Stack) -> None:
    """Messages after `stop` are ignored."""
    async with stack.client(OMNI) as client:
        await begin(client, hang("generate"))
        await client.send(chunk(), STOP, chunk(), PAUSE, prepare(), STOP, json.dumps(UNKNOWN))
        assert await client.end() == ([stopped("user_stop")], 1000)


@pytest.mark.parametrize(("target", "limit_s"), [(OMNI, 300.0), (BARE, 300.0), (AUDIO, 600.0)])
async def test_limit_of_the_session(target: str, limit_s: float) -> None:
    async with clockwork() as still, still.client(target) as client:
        await begin(client, is_bare=target == BARE)
        await still.advance(limit_s - 0.1)
        assert await client.ask(RESUME) == {"type": "resumed"}
        await still.advance(0.1)
        assert await client.end() == ([timeout(f"Session limit ({limit_s}s)")], 1000)


async def test_paused_session_refuses_input_and_goes_on_when_it_resumes(stack: Stack) -> None:
    async with stack.client(OMNI) as client:
        await begin(client, speak("Word"), TELLS)
        assert await client.ask(PAUSE) == {"type": "paused", "timeout": 60}
        for event in (chunk(), video_frame()):
            assert await client.ask(event) == error("paused", "Worker is paused")
        assert await client.ask(prepare()) == error("invalid_event")
        await assert_not_ready(client)
        assert await client.ask(INTERRUPT) == {"type": "interrupted"}
        assert await client.ask(RESUME) == {"type": "resumed"}
        await client.send(chunk(level=0.2))
        assert await client.next() == listens(1)
        await client.send(chunk(level=0.3))
        units = told(await client.next())["units"]
        assert [(unit["audio"], unit["frames"]) for unit in units] == [([0.2] * 4, []), ([0.3] * 4, [])]


async def test_paused_session_ends_in_time_and_releases_its_slot() -> None:
    """A second pause restarts the clock; nothing is idle meanwhile."""
    async with clockwork(slots=1) as still, still.client(OMNI) as client, still.client(OMNI) as waiting:
        await begin(client)
        await waiting.expect("queued")
        waiting.ignored = {"queue_update"}
        assert await client.ask({"type": "pause", "timeout": 70}) == {"type": "paused", "timeout": 70}
        await still.advance(69.9)
        assert await client.ask(PAUSE) == {"type": "paused", "timeout": 60}
        await still.advance(60)
        assert await client.end() == ([timeout("Pause timeout (60.0s)")], 1000)
        assert await waiting.next() == {"type": "queue_done"}


async def test_dropped_connection_releases_a_paused_session_at_once(narrow: Stack) -> None:
    """The other states are in `tests/conformance/realtime`."""
    async with waiting(narrow) as (holder, client):
        assert (await holder.ask(PAUSE))["type"] == "paused"
        holder.vanish()
        assert await client.next() == {"type": "queue_done"}
