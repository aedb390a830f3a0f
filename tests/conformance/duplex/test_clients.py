"""Clients of `/ws/duplex` that must keep working, each a faithful copy of its traffic; and stale input."""

import base64

import numpy as np

from tests.conformance.support.client import Client
from tests.conformance.support.clockwork import Clockwork, clockwork
from tests.conformance.support.duplex_words import (
    BARE,
    OMNI,
    PAUSE,
    RESUME,
    begin,
    begin_script,
    chunk,
    error,
    listens,
    prepare,
    speaks,
    stop,
)
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import RATE
from tests.support.scripted_engine import Script, fails, hang, listen, speak, turn_end

TURN = (listen(), listen(), speak("Hello", " there"), speak(" how are"), turn_end(" you?"))


async def test_client_in_lockstep_on_the_bare_path(stack: Stack) -> None:
    """The last chunk of its file is short."""
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


async def test_client_forces_listening_on_each_chunk(stack: Stack) -> None:
    async with stack.client(OMNI) as client:
        await begin_script(client, Script((speak("Word"),), repeat=True))
        for unit in range(1, 9):
            assert await client.ask(chunk(force_listen=True)) == listens(unit)
        assert await client.ask({"type": "audio_chunk", "force_listen": True}) == listens(9)
        assert await client.ask(chunk()) == speaks(10, "Word", 1.0)


async def send_each_second(still: Clockwork, client: Client, count: int) -> None:
    """One chunk a second, each taken in before the clock goes on."""
    for _ in range(count):
        await client.send(chunk(), RESUME)
        await client.expect("resumed")
        await still.advance(1)


async def test_length_of_the_context_is_monotone_over_failed_and_dropped_units() -> None:
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


async def test_at_most_32_units_wait(stack: Stack) -> None:
    """The oldest are dropped at once, here while the session is not ready."""
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
