"""Section 4.2: every cell of the state table of `/ws/duplex`.

Cells are named by state and column. Each test states every event that its client gets.
"""

import asyncio
import json
import time
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
    begin_script,
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
from tests.conformance.support.match import TRACE_ID
from tests.conformance.support.stack import PATIENCE_S, Stack
from tests.conformance.support.words import TELLS
from tests.support.scripted_engine import Script, hang, speak

PREPARED = {"type": "prepared", "prompt_length": 10, "session_id": LABEL}

both_inputs = pytest.mark.parametrize("event", [chunk(), video_frame()], ids=["audio_chunk", "video_frame"])
all_steering = pytest.mark.parametrize("event", [PAUSE, RESUME, INTERRUPT], ids=lambda event: event["type"])


@asynccontextmanager
async def waiting(narrow: Stack) -> AsyncIterator[tuple[Client, Client]]:
    """A client that has the only slot, and one that is QUEUED."""
    async with narrow.client(OMNI) as holder, narrow.client(OMNI) as client:
        await begin(holder)
        client.ignored = {"queue_update"}
        await client.expect("queued")
        yield holder, client


@asynccontextmanager
async def preparing(stack: Stack, script: Script) -> AsyncIterator[Client]:
    """A client that is PREPARING until `ready 0` of the script's key is released."""
    async with stack.client(OMNI) as client:
        await client.expect("queue_done")
        await client.send(prepare(script))
        yield client


@asynccontextmanager
async def connected(stack: Stack) -> AsyncIterator[Client]:
    async with stack.client(OMNI) as client:
        assert await client.next() == {"type": "queue_done"}
        yield client


@asynccontextmanager
async def active(stack: Stack) -> AsyncIterator[Client]:
    async with stack.client(OMNI) as client:
        await begin(client)
        yield client


@asynccontextmanager
async def paused(stack: Stack) -> AsyncIterator[Client]:
    async with active(stack) as client:
        await client.send(PAUSE)
        assert await client.next() == {"type": "paused", "timeout": 60}
        yield client


def wait_for_an_empty_queue(stack: Stack) -> None:
    """Returns as soon as nobody waits any more."""
    end = time.monotonic() + PATIENCE_S
    while stack.ask_http("/api/queue")[1]["queue_length"]:
        assert time.monotonic() < end
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------------ QUEUED


async def test_queued_prepare_is_held(narrow: Stack) -> None:
    """QUEUED/prepare: hold; validated at once (section 2), and applied at the slot."""
    async with waiting(narrow) as (holder, client):
        bad = error("invalid_payload", "config.top_k: expected an integer from 1 to 1000, got 0")
        assert await client.ask(prepare(config={"top_k": 0})) == bad
        await client.send(prepare(), prepare())
        await stop(holder)

        assert await client.take(2) == [{"type": "queue_done"}, PREPARED]
        assert await stop(client) == []


@both_inputs
async def test_queued_input_without_prepare_is_not_ready(narrow: Stack, event: Event) -> None:
    """QUEUED/audio_chunk, video_frame: held behind a held prepare, else `not_ready`."""
    async with waiting(narrow) as (_, client):
        assert await client.ask(event) == error("not_ready", f"{event['type']} before prepare")


async def test_queued_input_behind_prepare_is_held(narrow: Stack) -> None:
    """QUEUED/audio_chunk, video_frame: held behind a held prepare."""
    async with waiting(narrow) as (holder, client):
        await client.send(prepare(Script((TELLS,))), video_frame(), chunk(level=0.2), chunk(8000))
        await stop(holder)

        await client.expect("queue_done", "prepared")
        unit = told(await client.next())["units"][0]
        assert (unit["audio"], len(unit["frames"])) == ([0.2] * 4, 1)
        assert await client.next() == listens(2)


@all_steering
async def test_queued_steering_is_not_ready(narrow: Stack, event: Event) -> None:
    """QUEUED/pause, resume, interrupt: `not_ready`."""
    async with waiting(narrow) as (_, client):
        assert await client.ask(event) == error("not_ready")
        await client.send(prepare())
        assert await client.ask(event) == error("not_ready")


async def test_queued_stop(narrow: Stack) -> None:
    """QUEUED/stop: `stopped`, 1000; the ticket is gone."""
    async with waiting(narrow) as (holder, client):
        ticket = client.events[0]["ticket_id"]
        await client.send(prepare())
        assert await stop(client) == []
        assert (await narrow.request(f"/api/queue/{ticket}"))[1]["found"] is False
        await holder.send(chunk())
        assert await holder.next() == listens(1)


async def test_queued_has_no_timer() -> None:
    """QUEUED/timer: none; neither the init nor the session clock runs while waiting."""
    async with clockwork(slots=1) as still, still.client(OMNI) as holder, still.client(OMNI) as client:
        await begin(holder)
        client.ignored = {"queue_update"}
        await client.expect("queued")
        await still.advance(50)
        await stop(holder)
        await client.expect("queue_done")
        await still.advance(19.9)
        assert (await client.ask(prepare()))["type"] == "prepared"


# --------------------------------------------------------------------------------------------- CONNECTED


async def test_connected_prepare(stack: Stack) -> None:
    """CONNECTED/prepare: PREPARING; an invalid one is refused and may be sent again."""
    async with connected(stack) as client:
        assert await client.ask(prepare(max_slice_nums=10)) == error(
            "invalid_payload", "max_slice_nums: expected an integer from 1 to 9, got 10"
        )
        assert await client.ask(prepare()) == PREPARED
        assert await stop(client) == []


@both_inputs
async def test_connected_input_is_not_ready(stack: Stack, event: Event) -> None:
    """CONNECTED/audio_chunk, video_frame: `not_ready`; nothing of it is kept."""
    async with connected(stack) as client:
        assert await client.ask(event) == error("not_ready", f"{event['type']} before prepare")
        await client.send(prepare(Script((TELLS,))), chunk(level=0.2))
        assert await client.next() == PREPARED
        unit = told(await client.next())["units"][0]
        assert (unit["audio"], unit["frames"]) == ([0.2] * 4, [])


@all_steering
async def test_connected_steering_is_not_ready(stack: Stack, event: Event) -> None:
    """CONNECTED/pause, resume, interrupt: `not_ready`."""
    async with connected(stack) as client:
        assert await client.ask(event) == error("not_ready")
        assert await client.ask(prepare()) == PREPARED


async def test_connected_stop(stack: Stack) -> None:
    """CONNECTED/stop: `stopped`, 1000."""
    async with connected(stack) as client:
        assert await stop(client) == []


async def test_connected_timer() -> None:
    """CONNECTED/timer: init: `timeout`, 1000; a refused prepare does not stop it."""
    async with clockwork() as still, still.client(OMNI) as client:
        await client.expect("queue_done")
        await still.advance(19.9)
        assert await client.ask(prepare(config=5)) == error("invalid_payload")
        await still.advance(0.1)
        assert await client.end() == ([timeout("Prepare timeout (20.0s)")], 1000)


# --------------------------------------------------------------------------------------------- PREPARING


async def test_preparing_prepare_is_ignored(stack: Stack) -> None:
    """PREPARING/prepare: ignored."""
    async with preparing(stack, Script(slow_start=True, key="D-again")) as client:
        await client.send(prepare(Script((speak("Never."),))))
        assert await client.ask(PAUSE) == error("not_ready")
        stack.worker.release("D-again", "ready", 0)
        assert await client.next() == PREPARED
        await client.send(chunk())
        assert await client.next() == listens(1)


async def test_preparing_input_is_held(stack: Stack) -> None:
    """PREPARING/audio_chunk, video_frame: held; a bad one is refused at once."""
    async with preparing(stack, Script((TELLS,), slow_start=True, key="D-held")) as client:
        await client.send(video_frame(), chunk(level=0.2))
        assert await client.ask(chunk(level=99.0)) == error(
            "invalid_payload", "audio_base64: not float32 PCM in [-1, 1]: the peak is 99"
        )
        stack.worker.release("D-held", "ready", 0)
        assert await client.next() == PREPARED
        unit = told(await client.next())["units"][0]
        assert (unit["audio"], len(unit["frames"])) == ([0.2] * 4, 1)


@all_steering
async def test_preparing_steering_is_not_ready(stack: Stack, event: Event) -> None:
    """PREPARING/pause, resume, interrupt: `not_ready`."""
    key = f"D-{event['type']}"
    async with preparing(stack, Script(slow_start=True, key=key)) as client:
        assert await client.ask(event) == error("not_ready")
        stack.worker.release(key, "ready", 0)
        assert await client.next() == PREPARED


async def test_preparing_stop(stack: Stack) -> None:
    """PREPARING/stop: `stopped`, 1000."""
    async with preparing(stack, Script(slow_start=True)) as client:
        assert await stop(client) == []


async def test_preparing_has_no_timer() -> None:
    """PREPARING/timer: none of its own; the session's limit, which runs from `queue_done`, still holds."""
    async with clockwork() as still, still.client(OMNI) as client:
        await client.expect("queue_done")
        await client.send(prepare(Script(slow_start=True)))
        assert await client.ask(PAUSE) == error("not_ready")
        await still.advance(299.9)
        assert await client.ask(PAUSE) == error("not_ready")
        await still.advance(0.1)
        assert await client.end() == ([timeout("Session limit (300.0s)")], 1000)


# ------------------------------------------------------------------------------------------------ ACTIVE


async def test_active_prepare_is_invalid(stack: Stack) -> None:
    """ACTIVE/prepare: `invalid_event`; nothing changes."""
    async with active(stack) as client:
        assert await client.ask(prepare()) == error("invalid_event")
        await client.send(chunk())
        assert await client.next() == listens(1)


async def test_active_input_is_accepted(stack: Stack) -> None:
    """ACTIVE/audio_chunk, video_frame: accepted."""
    async with stack.client(OMNI) as client:
        await begin(client, TELLS, speak("Seven"))
        await client.send(video_frame(), chunk(level=0.2))
        unit = told(await client.next())["units"][0]
        assert (unit["audio"], len(unit["frames"])) == ([0.2] * 4, 1)
        await client.send(chunk())
        assert await client.next() == speaks(2, "Seven", 1.0)


async def test_active_pause(stack: Stack) -> None:
    """ACTIVE/pause: PAUSED, `paused`; units in flight still answered."""
    async with stack.client(OMNI) as client:
        await begin_script(client, Script((hang("generate"), speak("Seven")), key="D-flight"))
        await client.send(chunk(), chunk(), chunk(8000), {"type": "pause", "timeout": 30})
        assert await client.next() == {"type": "paused", "timeout": 30}
        stack.worker.release("D-flight", "generate", 1)
        assert await client.take(3) == [listens(1), speaks(2, "Seven", 1.0), listens(3)]


async def test_active_resume(stack: Stack) -> None:
    """ACTIVE/resume: `resumed`."""
    async with active(stack) as client:
        assert await client.ask(RESUME) == {"type": "resumed"}
        await client.send(chunk())
        assert await client.next() == listens(1)


async def test_active_interrupt(stack: Stack) -> None:
    """ACTIVE/interrupt: `interrupted`; the next unit is forced to listen, the one after is not."""
    async with stack.client(OMNI) as client:
        await begin(client, *[speak("Word")] * 3)
        await client.send(chunk())
        assert await client.next() == speaks(1, "Word", 1.0)
        assert await client.ask(INTERRUPT) == {"type": "interrupted"}
        await client.send(chunk(), chunk())
        assert await client.take(2) == [listens(2), speaks(3, "Word", 1.0)]


async def test_active_stop(stack: Stack) -> None:
    """ACTIVE/stop: `stopped`, 1000; it stands for what is not answered yet."""
    async with stack.client(OMNI) as client:
        await begin(client, hang("generate"))
        await client.send(chunk())
        assert await stop(client) == []


@pytest.mark.parametrize(("target", "limit_s"), [(OMNI, 300.0), (BARE, 300.0), (AUDIO, 600.0)])
async def test_active_timer(target: str, limit_s: float) -> None:
    """ACTIVE/timer: limit: `timeout`, 1000. 9.1: 300 s, `audio_duplex` 600 s; idle time counts."""
    async with clockwork() as still, still.client(target) as client:
        await begin(client, is_bare=target == BARE)
        await still.advance(limit_s - 0.1)
        assert await client.ask(RESUME) == {"type": "resumed"}
        await still.advance(0.1)
        assert await client.end() == ([timeout(f"Session limit ({limit_s}s)")], 1000)


async def test_active_idle_timer() -> None:
    """9.1: idle, duplex: 60 s without append, only while somebody waits in the queue."""
    async with clockwork(slots=1) as still, still.client(OMNI) as client:
        await begin(client)
        await still.advance(100)
        await client.send(chunk())
        assert await client.next() == listens(1)
        async with still.client(OMNI) as waiting:
            await waiting.expect("queued")
            await still.advance(59.9)
            assert await client.ask(RESUME) == {"type": "resumed"}
            await still.advance(0.1)
            assert await client.end() == ([timeout("Idle timeout (60.0s)")], 1000)


# ------------------------------------------------------------------------------------------------ PAUSED


async def test_paused_prepare_is_invalid(stack: Stack) -> None:
    """PAUSED/prepare: `invalid_event`."""
    async with paused(stack) as client:
        assert await client.ask(prepare()) == error("invalid_event")
        assert await client.ask(RESUME) == {"type": "resumed"}


@both_inputs
async def test_paused_input_is_refused(stack: Stack, event: Event) -> None:
    """PAUSED/audio_chunk, video_frame: `error` `Worker is paused`, code `paused`; nothing of it is kept."""
    async with stack.client(OMNI) as client:
        await begin(client, TELLS)
        await client.ask(PAUSE)
        assert await client.ask(event) == {
            "type": "error",
            "error": "Worker is paused",
            "code": "paused",
            "message": "Worker is paused",
            "trace_id": TRACE_ID,
        }
        await client.ask(RESUME)
        await client.send(chunk(level=0.2))
        unit = told(await client.next())["units"][0]
        assert (unit["audio"], unit["frames"]) == ([0.2] * 4, [])


async def test_paused_pause_restarts_the_timer() -> None:
    """PAUSED/pause: `paused`, timer restarts."""
    async with clockwork() as still, still.client(OMNI) as client:
        await begin(client)
        assert await client.ask({"type": "pause", "timeout": 30}) == {"type": "paused", "timeout": 30}
        await still.advance(29)
        assert await client.ask({"type": "pause", "timeout": 30}) == {"type": "paused", "timeout": 30}
        await still.advance(29)
        assert await client.ask(chunk()) == error("paused", "Worker is paused")
        await still.advance(1)
        assert await client.end() == ([timeout("Pause timeout (30.0s)")], 1000)


async def test_paused_resume(stack: Stack) -> None:
    """PAUSED/resume: ACTIVE, `resumed`."""
    async with paused(stack) as client:
        assert await client.ask(RESUME) == {"type": "resumed"}
        await client.send(chunk())
        assert await client.next() == listens(1)


async def test_paused_interrupt(stack: Stack) -> None:
    """PAUSED/interrupt: `interrupted`; still PAUSED."""
    async with stack.client(OMNI) as client:
        await begin(client, speak("Word"))
        await client.ask(PAUSE)
        assert await client.ask(INTERRUPT) == {"type": "interrupted"}
        assert await client.ask(chunk()) == error("paused", "Worker is paused")
        await client.ask(RESUME)
        await client.send(chunk())
        assert await client.next() == listens(1)


async def test_paused_stop(stack: Stack) -> None:
    """PAUSED/stop: `stopped`, 1000."""
    async with paused(stack) as client:
        assert await stop(client) == []


async def test_paused_timer_releases_the_slot() -> None:
    """PAUSED/timer: pause: `timeout`, 1000, slot released. 9.1: 60 s from `paused`; nothing is idle."""
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


async def test_paused_time_counts_for_the_session() -> None:
    """9.1: idle and paused time count for the session's limit."""
    async with clockwork() as still, still.client(OMNI) as client:
        await begin(client)
        await still.advance(10)
        assert await client.ask({"type": "pause", "timeout": 300}) == {"type": "paused", "timeout": 300}
        await still.advance(290)
        assert await client.end() == ([timeout("Session limit (300.0s)")], 1000)


# -------------------------------------------------------------------------------------------- any state


async def test_any_state_unknown_type(stack: Stack, narrow: Stack) -> None:
    """4.2: unknown `type`: `unknown_event`, `Unknown message type: X`; missing: `missing_field`; no close."""
    expected = [error("unknown_event", "Unknown message type: response.cancel"), error("missing_field")]

    async def asks(client: Client) -> None:
        assert [await client.ask(event) for event in (UNKNOWN, {})] == expected

    async with waiting(narrow) as (_, client):
        await asks(client)
    async with connected(stack) as client:
        await asks(client)
    async with preparing(stack, Script(slow_start=True)) as client:
        await asks(client)
    async with paused(stack) as client:
        await asks(client)
        await client.ask(RESUME)
        await asks(client)


@pytest.mark.parametrize("state", ["QUEUED", "CONNECTED", "PREPARING", "ACTIVE", "PAUSED"])
async def test_any_state_dropped_connection(narrow: Stack, state: str) -> None:
    """Row 11 of section 11: released at once, whether queued or not."""
    async with narrow.client(OMNI) as holder:
        if state == "QUEUED":
            await begin(holder)
        else:
            await holder.expect("queue_done")
        async with narrow.client(OMNI) as client:
            await client.expect("queued")
            client.ignored = {"queue_update"}
            match state:
                case "QUEUED":
                    client.vanish()
                    await asyncio.to_thread(wait_for_an_empty_queue, narrow)
                    return
                case "PREPARING":
                    await holder.send(prepare(Script(slow_start=True)))
                case "ACTIVE" | "PAUSED":
                    await holder.send(prepare(Script((hang("generate"),))), chunk())
                    await holder.expect("prepared")
            if state == "PAUSED":
                assert (await holder.ask(PAUSE))["type"] == "paused"
            holder.vanish()
            assert await client.next() == {"type": "queue_done"}


async def test_last_event_is_the_last(stack: Stack) -> None:
    """CLOSING: whatever follows `stop` is ignored; one terminal event, then Close."""
    async with active(stack) as client:
        await client.send(STOP, chunk(), PAUSE, prepare(), STOP, json.dumps(UNKNOWN))
        assert await client.end() == ([stopped("user_stop")], 1000)
