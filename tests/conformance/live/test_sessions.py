"""`/v1/live/sessions` over real sockets, with a scripted model behind a real worker."""

import base64
import json
import time

import numpy as np
import pytest

from tests.conformance.support.client import Client, Event
from tests.conformance.support.recordings import pcm16, recording
from tests.conformance.support.stack import Stack
from tests.support.scripted_engine import Play, Script, listen, speak, turn_end

AUDIO = "session.output_audio.delta"
WORDS = "session.output_transcript.delta"
USAGE = "session.usage.updated"
URL = "/v1/live/sessions"
RATE = 16_000
SLICE_S = 0.2


def start(*plays: Play) -> Event:
    audio = {"format": {"type": "audio/pcm", "rate": RATE}}
    session = {"model": "scripted", "instructions": Script(plays).as_prompt(), "audio": audio}
    return {"type": "session.start", "event_id": "start", "session": session}


def append(seconds: float = 1.0, level: float = 0.0) -> Event:
    samples = np.full(round(seconds * RATE), level * 32_767, "<i2")
    return {"type": "session.input_audio.append", "audio": base64.b64encode(samples.tobytes()).decode()}


def speech() -> Event:
    """Half a second in which somebody says something."""
    audio = base64.b64encode(pcm16(recording("stop")[RATE : RATE * 3 // 2])).decode()
    return {"type": "session.input_audio.append", "audio": audio}


def is_loud(event: Event) -> bool:
    return event["type"] == AUDIO and any(base64.b64decode(event["delta"]))


async def begin(client: Client, *plays: Play) -> Event:
    await client.send(start(*plays))
    event = await client.expect("session.started")
    assert event["client_event_id"] == "start"
    return event


async def until_answered(client: Client, seconds: int) -> None:
    while (event := await client.next())["type"] != USAGE or event["usage"]["seconds"] < seconds:
        pass


async def until_loud(client: Client) -> None:
    while not is_loud(await client.next()):
        pass


async def test_sound_comes_in_real_time_from_the_start(stack: Stack) -> None:
    async with stack.client(URL) as client:
        began = time.monotonic()
        await begin(client)

        events = await client.take(11)

        assert {event["type"] for event in events} == {AUDIO}
        assert time.monotonic() - began > 9 * SLICE_S


async def test_speech_over_an_answer_stops_it(stack: Stack) -> None:
    """An interruption ends the audio: the rest of the long answer never arrives."""
    async with stack.client(URL) as client:
        await begin(client, *[speak(f"word {i} ") for i in range(20)], listen())
        await client.send(append(20.0))
        await until_answered(client, 20)  # before that, what comes is sent ahead of the clock
        await until_loud(client)

        await client.send(speech())

        loud = quiet = 0
        while quiet < 10:
            event = await client.next()
            if event["type"] == AUDIO:
                loud, quiet = (loud + 1, 0) if is_loud(event) else (loud, quiet + 1)
        assert loud < 90, "of a hundred"


async def test_a_close_waits_for_the_last_words(stack: Stack) -> None:
    async with stack.client(URL) as client:
        await begin(client, speak("Good"), turn_end(" bye"))
        await client.send(append(2.0), {"type": "session.close", "event_id": "over"})

        events, code = await client.end()

        assert code == 1000
        assert "".join(event["delta"] for event in events if event["type"] == WORDS) == "Good bye"
        assert events[-1]["reason"] == "close_requested"
        assert events[-2]["type"] == "session.usage.updated"


async def test_session_waiting_for_slot_gets_its_place_and_then_starts(narrow: Stack) -> None:
    async with narrow.client(URL) as first:
        await begin(first)
        async with narrow.client(URL) as second:
            await second.send(start())
            info = await second.expect("info")
            assert info["code"] == "queued"
            assert "place 1 of 1" in info["message"]

            await first.send({"type": "session.close"})
            await first.end()

            second.ignored = {"info"}
            await second.expect("session.started")


async def test_silent_connection_takes_no_slot(narrow: Stack) -> None:
    """The attack: sockets without a `session.start` would fill the queue of those who talk."""
    async with narrow.client(URL), narrow.client(URL), narrow.client(URL) as talker:
        await begin(talker)


async def test_a_client_that_vanishes_leaves_its_slot(narrow: Stack) -> None:
    async with narrow.client(URL) as client:
        await begin(client, *[speak("on and on ") for _ in range(20)])
        await client.send(append(2.0))
        await until_loud(client)
        client.vanish()

    await narrow.until(free_slots=1)


async def test_pieces_of_20_ms_are_heard_whole(stack: Stack) -> None:
    async with stack.client(URL) as client:
        await begin(client, Play(tells=True, end=turn_end().end))
        for _ in range(50):
            await client.send(append(0.02, 0.25))

        while (event := await client.next())["type"] != WORDS:
            pass

        (unit, *_) = json.loads(event["delta"])["units"]
        assert unit["audio"] == pytest.approx([0.25] * 4, abs=1e-3)
