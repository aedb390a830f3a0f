"""Section 11, the rows of `/ws/duplex`: copies of what such clients do. Section 6 as this dialect sees it."""

import asyncio
import base64
from typing import Any

import numpy as np
import pytest

from tests.conformance.support.client import Client, Event
from tests.conformance.support.clockwork import Clockwork, clockwork
from tests.conformance.support.duplex_words import (
    BARE,
    INTERRUPT,
    LABEL,
    OMNI,
    PAUSE,
    RESUME,
    STOP,
    begin,
    begin_script,
    chunk,
    error,
    jpeg,
    listens,
    prepare,
    speaks,
    stop,
    stopped,
    told,
    video_frame,
)
from tests.conformance.support.match import Number
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import RATE, TELLS
from tests.support.scripted_engine import Script, fails, hang, listen, speak, turn_end

TURN = (listen(), listen(), speak("Hello", " there"), speak(" how are"), turn_end(" you?"))


# ------------------------------------------------------------------------------------------- section 11


async def test_row_1_prepare_before_queue_done(narrow: Stack) -> None:
    """Row 1: sends `prepare` 100 ms after open, before `queue_done`: held through a wait; answered once."""
    async with narrow.client(OMNI) as holder, narrow.client(OMNI) as client:
        await begin(holder)
        await asyncio.sleep(0.1)
        await client.send(prepare(Script((speak("Here."),))), chunk())
        client.ignored = {"queue_update"}
        await client.expect("queued")
        await stop(holder)
        assert await client.take(3) == [
            {"type": "queue_done"},
            {"type": "prepared", "prompt_length": 10, "session_id": LABEL},
            speaks(1, "Here.", 1.0),
        ]
        assert await stop(client) == []


async def test_row_4_lockstep_on_the_bare_path(stack: Stack) -> None:
    """Row 4: first message must be `prepared`; one message per chunk; last chunk of a file short."""
    recording = np.full(int(5.3 * RATE), 0.1, "<f4")
    answers = []
    async with stack.client(BARE) as client:
        assert (await client.ask(prepare(Script(TURN))))["type"] == "prepared"
        for start in range(0, recording.size, RATE):
            data = base64.b64encode(recording[start : start + RATE].tobytes()).decode()
            answers.append(await client.ask({"type": "audio_chunk", "audio_base64": data}))
        assert await stop(client, label=None) == []

    assert answers == [
        listens(1),
        listens(2),
        speaks(3, "Hello there", 1.0),
        speaks(4, " how are", 1.0),
        speaks(5, " you?", 0.5, end_of_turn=True),
        listens(6),
    ]


async def test_row_4_short_chunk_runs_after_the_flush_time() -> None:
    """Row 4: flush after 1.25 s; 6.1: the carry is padded with zeros at its end and runs as one unit."""
    async with clockwork() as still, still.client(BARE) as client:
        await begin(client, is_bare=True)
        await client.send(chunk(4800), INTERRUPT)
        await client.expect("interrupted")
        await still.advance(1.24)
        assert still.session.heard == {}
        await still.advance(0.01)
        assert await client.next() == listens(1)
        heard = still.session.heard[1]
        assert np.count_nonzero(heard[:4800] == np.float32(0.1)) == 4800
        assert not heard[4800:].any()


async def test_row_9_unknown_things_are_ignored(stack: Stack) -> None:
    """Row 9: `Authorization: Bearer`, unknown query parameters, unknown fields."""
    headers = {"Authorization": "Bearer sk-none", "X-Client": "robot"}
    target = f"{OMNI}?session_id=1&autostart=true&model=x"
    async with stack.client(target, additional_headers=headers) as client:
        await begin(client, session_id="mine", device={"os": "none"})
        await client.send(chunk(seq=1, timestamp=1.5))
        assert await client.next() == listens(1)


async def test_row_11_abrupt_end_frees_the_slot_at_once(narrow: Stack) -> None:
    """Row 11: closes abruptly in the middle of a unit; the next one gets the slot."""
    async with narrow.client(OMNI) as client:
        await begin(client, hang("generate"))
        await client.send(chunk())
        client.vanish()
        await narrow.until(free_slots=1)


async def test_row_12_force_listen_on_each_chunk(stack: Stack) -> None:
    """Row 12: sets `force_listen` on each chunk for a while: one listen per unit; then the model speaks."""
    async with stack.client(OMNI) as client:
        await begin_script(client, Script((speak("Word"),), repeat=True))
        for unit in range(1, 9):
            assert await client.ask(chunk(force_listen=True)) == listens(unit)
        assert await client.ask(chunk()) == speaks(9, "Word", 1.0)


async def test_row_13_pause_and_resume(stack: Stack) -> None:
    """Row 13: pauses, goes on sending, ignores errors containing `paused`, resumes."""
    async with stack.client(OMNI) as client:
        await begin(client, listen(), speak("Back."))
        assert await client.ask(chunk()) == listens(1)
        assert await client.ask(PAUSE) == {"type": "paused", "timeout": 60}
        for _ in range(5):
            refused = await client.ask(chunk())
            assert "paused" in refused["error"].lower()
            assert "paused" in refused["message"].lower()
        assert await client.ask(RESUME) == {"type": "resumed"}
        assert await client.ask(chunk()) == speaks(2, "Back.", 1.0)


async def send_each_second(still: Clockwork, client: Client, count: int) -> None:
    """One chunk a second, each taken in before the clock goes on."""
    for _ in range(count):
        await client.send(chunk(), RESUME)
        await client.expect("resumed")
        await still.advance(1)


async def test_row_14_length_of_the_context() -> None:
    """Row 14: counts `kv_cache_length` and stops by itself: always present and monotone."""
    async with clockwork() as still, still.client(OMNI) as client:
        await begin(client, hang("generate"), fails(), speak("One"), turn_end("Two"))
        await send_each_second(still, client, 7)
        still.session.release("generate", 1)
        events = await client.take(8)

    assert events == [
        listens(1),
        error("inference_error"),
        listens(2),
        listens(3, dropped=True, dropped_total=1),
        listens(4, dropped=True, dropped_total=2),
        speaks(5, "One", 1.0, dropped_total=2),
        speaks(6, "Two", 0.5, end_of_turn=True, dropped_total=2),
        listens(7, dropped_total=2),
    ]
    lengths = [event["kv_cache_length"] for event in events if event["type"] == "result"]
    assert lengths == sorted(lengths)


async def test_row_15_no_listen_inside_an_open_turn() -> None:
    """Row 15: flushes playback on every listen: none inside an open turn. 6.3: not for a dropped unit."""
    async with clockwork() as still, still.client(OMNI) as client:
        await begin(client, speak("One"), speak("Two", hold="generate"), speak("Three"), turn_end("Four"))
        assert await client.ask(chunk()) == speaks(1, "One", 1.0)
        await send_each_second(still, client, 6)
        still.session.release("generate", 2)
        assert await client.take(5) == [
            speaks(2, "Two", 1.0),
            speaks(3, "Three", 1.0),
            speaks(5, "Four", 0.5, end_of_turn=True, dropped_total=1),
            listens(6, dropped_total=1),
            listens(7, dropped_total=1),
        ]


async def test_row_15_a_real_interruption(stack: Stack) -> None:
    """Row 15: except a real interruption. 6.4: every unit that loses its answer gets one listen instead."""
    async with stack.client(OMNI) as client:
        await begin(client, speak("One"), hang("generate"), speak("Three"), speak("Four"))
        assert await client.ask(chunk()) == speaks(1, "One", 1.0)
        await client.send(chunk(), chunk(), chunk(force_listen=True), chunk())
        assert await client.take(4) == [listens(2), listens(3), listens(4), listens(5)]


async def test_row_16_next_session_right_after_the_last(narrow: Stack) -> None:
    """Row 16: no refusal while the old slot is being cleaned; complete close handshake."""
    for _ in range(5):
        async with narrow.client(OMNI) as client:
            client.ignored = {"queued", "queue_update"}
            await begin(client, speak("Yes"))
            assert await client.ask(chunk()) == speaks(1, "Yes", 1.0)
            await client.send(STOP)
            assert await client.end() == ([stopped("user_stop")], 1000)


# ------------------------------------------------------------------------------------- section 6, on D


async def units_told(client: Client, *events: Event) -> list[dict[str, Any]]:
    """What the worker was given by these events, as the last of their units says."""
    await client.send(*events)
    result = await client.expect("result")
    while result["is_listen"]:
        result = await client.expect("result")
    units: list[dict[str, Any]] = told(result)["units"]
    return units


async def test_units_are_cut_in_order(stack: Stack) -> None:
    """6.1: carry >= 16,000: units of 16,000 in order; the rest stays and the next append joins it."""
    async with stack.client(OMNI) as client:
        await begin(client, listen(), listen(), TELLS)
        events = [chunk(RATE * 2 + 4000, 0.1), chunk(12_000, 0.2)]
        units = await units_told(client, *events)
    assert [unit["audio"] for unit in units] == [[0.1] * 4, [0.1] * 4, [0.1, 0.2, 0.2, 0.2]]


@pytest.mark.parametrize("samples", [15_840, 15_999])
async def test_nearly_a_unit_is_padded_at_once(stack: Stack, samples: int) -> None:
    """6.1: append of 15,840..15,999 samples, carry empty: one unit at once."""
    async with stack.client(OMNI) as client:
        await begin(client)
        assert await client.ask(chunk(samples)) == listens(1, wall_clock_ms=Number(0, 1000))


async def test_force_listen_flushes_the_carry(stack: Stack) -> None:
    """6.1: `force_listen:true`: the carry is flushed at once; audio may be absent."""
    async with stack.client(OMNI) as client:
        await begin(client, speak("Never"), speak("Yes"))
        await client.send(chunk(8000), chunk(1000, force_listen=True))
        assert await client.next() == listens(1)
        assert await client.ask({"type": "audio_chunk", "force_listen": True}) == listens(2)


async def test_no_silence_is_made_up() -> None:
    """6.2: D never gets injected silence: one `audio_chunk` unit, one `result`."""
    async with clockwork() as still, still.client(OMNI) as client:
        await begin(client)
        await client.send(chunk(RATE * 4))
        assert await client.take(4) == [listens(unit) for unit in range(1, 5)]
        for _ in range(20):
            await still.advance(1)
        assert len(still.session.heard) == 4
        assert await client.ask(chunk()) == listens(5)


async def test_stale_units_are_answered_in_their_place() -> None:
    """6.3: a unit that waited over 3 s is answered by one `result` with `dropped:true`, `dropped_total`."""
    async with clockwork() as still, still.client(OMNI) as client:
        await begin(client, hang("generate"))
        await send_each_second(still, client, 6)
        still.session.release("generate", 1)
        assert await client.take(6) == [
            listens(1),
            listens(2),
            listens(3, dropped=True, dropped_total=1),
            listens(4, dropped_total=1),
            listens(5, dropped_total=1),
            listens(6, dropped_total=1),
        ]


async def test_at_most_32_units_wait(stack: Stack) -> None:
    """6.3: at once, oldest first, when more than 32 units wait: here while the session is not ready."""
    async with stack.client(OMNI) as client:
        await client.expect("queue_done")
        await client.send(prepare(Script(slow_start=True, key="D-many")))
        for number in range(40):
            await client.send(chunk(level=number / 100))
        assert await client.ask(PAUSE) == error("not_ready")
        stack.worker.release("D-many", "ready", 0)
        assert (await client.next())["type"] == "prepared"
        assert await client.take(32) == [listens(unit, dropped_total=8) for unit in range(1, 33)]
        assert await stop(client) == []


async def test_frames_of_a_burst_are_spread(stack: Stack) -> None:
    """6.5: in a burst of U units, frame j of F goes to unit floor(j*U/F)."""
    async with stack.client(OMNI) as client:
        await begin(client, listen(), listen(), TELLS)
        burst = chunk(RATE * 3, frame_base64_list=[jpeg(shade) for shade in range(4)])
        units = await units_told(client, video_frame(9), burst)
    assert [len(unit["frames"]) for unit in units] == [1 + 2, 1, 1]
