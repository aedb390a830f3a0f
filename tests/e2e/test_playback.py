"""What is heard of the shipped model's answer while the client streams by the clock: no hole in it."""

import asyncio
import base64
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from websockets.asyncio.client import connect

from tests.conformance.support.client import Client, Event
from tests.conformance.support.words import CLOSE, G3, samples_of
from tests.e2e.conftest import RATE, Recording, until_all_free
from tests.support.long import long

Samples = NDArray[np.float32]

OUTPUT_RATE_HZ = 24_000
LEAD_S = 0.6
"""What the loudspeaker holds back: more than input is late on a busy machine, less than a second."""

FILE_S = 4.95
"""The file goes on behind its question, and ends in the answer, a little before a whole second."""


@dataclass
class Loudspeaker:
    """Plays from `LEAD_S` after the first sound of a response, by the clock, up to its end.

    A busy machine takes its time for a unit: each is played as if it had come when its input was there.
    `holes` are the seconds in which it had nothing to play inside a response, `played_s` all the others.
    """

    holes: list[float] = field(default_factory=list)
    played_s: float = 0.0
    _empty_at: float | None = None

    def take(self, event: Event, now: float) -> None:
        if event.get("kind") == "audio":
            computed_s = event["metrics"]["wall_clock_ms"] / 1000
            self._play(len(samples_of(event)) / OUTPUT_RATE_HZ, now - computed_s)
        elif event.get("kind") == "listen" and "response_id" in event:
            self._empty_at = None

    def _play(self, seconds: float, now: float) -> None:
        if self._empty_at is None:
            self._empty_at = now + LEAD_S
        elif now > self._empty_at:
            self.holes.append(now - self._empty_at)
            self._empty_at = now
        self._empty_at += seconds
        self.played_s += seconds


def appends(file: Samples, piece_s: float, seconds: float) -> Iterator[tuple[float, Samples]]:
    """When what is sent: the file in pieces and silence in seconds, each when a microphone would have it."""
    size, sent = round(piece_s * RATE), 0
    while sent < seconds * RATE:
        piece = file[sent : sent + size] if sent < len(file) else np.zeros(RATE, np.float32)
        sent += len(piece)
        yield sent / RATE, piece


async def heard(adapter: str, file: Samples, piece_s: float) -> Loudspeaker:
    """What is heard of a conversation in which the file comes in pieces of so many seconds."""
    speaker = Loudspeaker()
    url = adapter.replace("http://", "ws://") + "/v1/realtime?mode=audio"
    async with connect(url, max_size=None, compression=None) as socket:
        client = Client(socket)
        await client.expect("session.queue_done")
        await client.send({"type": "session.init", "payload": {"config": {"decode_mode": "greedy"}}})
        await client.expect("session.created")
        sending = asyncio.create_task(_stream(client, file, piece_s))
        while (event := await client.next())["type"] != "session.closed":
            speaker.take(event, time.monotonic())
        await sending
    return speaker


async def _stream(client: Client, file: Samples, piece_s: float) -> None:
    start = time.monotonic()
    for due_s, piece in appends(file, piece_s, FILE_S + 4):
        await asyncio.sleep(max(0.0, start + due_s - time.monotonic()))
        await client.send(G3.append(audio=base64.b64encode(piece.astype("<f4").tobytes()).decode()))
    await client.send(CLOSE)


@long
async def test_a_file_that_ends_inside_a_second_leaves_no_hole_in_the_answer(
    adapter: str, recordings: list[Recording]
) -> None:
    """The file in appends of 20, 200 and 500 ms and of 1 s, then silence in whole seconds.

    In real time: a machine that is busy with something else leaves holes of its own.
    """
    question = next(recording.pcm for recording in recordings if recording.name == "joke")
    file = np.zeros(round(FILE_S * RATE), np.float32)
    file[: len(question)] = question
    await until_all_free(adapter)
    speakers = await asyncio.gather(*(heard(adapter, file, piece_s) for piece_s in (0.02, 0.2, 0.5, 1.0)))

    assert [speaker.holes for speaker in speakers] == [[]] * 4
    assert min(speaker.played_s for speaker in speakers) > 3.0, "the answer outlasted the file"
