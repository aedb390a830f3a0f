"""Tests of sending a recording in real time, with a virtual clock."""

import asyncio
from typing import Any, Literal

import numpy as np
import pytest

from antiphon import FileStream, SessionClosed
from antiphon.audio.samples import Samples
from tests.support.patience import PATIENCE_S

RATE = 16_000


class VirtualClock:
    """Time passes at once when somebody sleeps."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds
        await asyncio.sleep(0)


class Ear:
    """Notes when each chunk came, ends the stream after `most` of them."""

    def __init__(self, clock: VirtualClock, most: int, delay_s: float = 0.0) -> None:
        self.heard: list[tuple[float, Samples]] = []
        self.full = asyncio.Event()
        self._clock, self._most, self._delay_s = clock, most, delay_s

    async def listen(self, samples: Samples) -> None:
        if len(self.heard) < self._most:
            self.heard.append((self._clock.time - 100.0, samples))
        if len(self.heard) == self._most:
            self.full.set()
        self._clock.time += self._delay_s

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.heard]

    @property
    def lengths(self) -> list[int]:
        return [len(samples) for _, samples in self.heard]


async def play(samples: Samples, most: int, delay_s: float = 0.0, **options: Any) -> tuple[FileStream, Ear]:
    """A stream that has sent all, and who heard it."""
    clock = VirtualClock()
    ear = Ear(clock, most, delay_s)
    async with FileStream(ear.listen, samples, clock=clock, **options) as stream:
        await asyncio.wait_for(stream.wait_sent(), PATIENCE_S)
        await asyncio.wait_for(ear.full.wait(), PATIENCE_S)
    return stream, ear


async def test_chunks_are_sent_when_a_microphone_would_send_them() -> None:
    samples = np.arange(int(2.5 * RATE), dtype=np.float32)
    stream, ear = await play(samples, 3, then_silence=False)
    assert stream.duration_s == 2.5
    assert ear.times == [1.0, 2.0, 2.5]
    assert np.array_equal(np.concatenate([heard for _, heard in ear.heard]), samples)


async def test_silence_follows_at_the_same_interval() -> None:
    _, ear = await play(np.ones(RATE + 1, np.float32), 4, then_silence=True)
    assert ear.times == [1.0, 2.0, 3.0, 4.0]
    assert ear.lengths == [RATE] * 4
    assert [float(heard.sum()) for _, heard in ear.heard] == [RATE, 1.0, 0.0, 0.0]


async def test_late_chunk_does_not_delay_the_next() -> None:
    _, ear = await play(np.ones(3 * RATE, np.float32), 3, delay_s=0.4, then_silence=False)
    assert ear.times == pytest.approx([1.0, 2.0, 3.0])


async def test_recording_counts_as_sent_only_when_all_of_it_is() -> None:
    clock = VirtualClock()
    sent = []

    async def listen(samples: Samples) -> None:
        sent.append(stream.sent)

    stream = FileStream(listen, np.ones(2 * RATE, np.float32), then_silence=False, clock=clock)
    async with stream:
        await asyncio.wait_for(stream.wait_sent(), PATIENCE_S)
    assert sent == [False, False]
    assert stream.sent


async def test_leaving_the_block_stops_the_stream() -> None:
    clock = VirtualClock()
    ear = Ear(clock, most=10**9)
    async with FileStream(ear.listen, np.ones(RATE, np.float32), then_silence=True, clock=clock) as stream:
        await asyncio.wait_for(stream.wait_sent(), PATIENCE_S)
    heard = len(ear.heard)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(ear.heard) == heard


async def test_end_of_the_conversation_raises_nothing_and_other_errors_leave_the_block() -> None:
    async def stream_to(error: Exception) -> None:
        async def fail(samples: Samples) -> None:
            raise error

        ones = np.ones(RATE, np.float32)
        async with FileStream(fail, ones, then_silence=True, clock=VirtualClock()) as stream:
            await asyncio.wait_for(stream.wait_sent(), PATIENCE_S)
        assert not stream.sent

    await stream_to(SessionClosed("timeout"))
    with pytest.raises(ZeroDivisionError):
        await stream_to(ZeroDivisionError())


async def test_stream_runs_only_inside_its_block() -> None:
    async def listen(samples: Samples) -> None: ...

    with pytest.raises(RuntimeError, match="async with"):
        await FileStream(listen, np.ones(1, np.float32), then_silence=False).wait_sent()


async def test_recording_may_be_sent_ahead_of_time_and_is_finished_once() -> None:
    finished: list[bool] = []

    async def finish() -> None:
        finished.append(True)

    _, ear = await play(np.zeros(5 * RATE, np.float32), 5, lead_s=2.0, finish=finish)
    assert ear.times == [0.0, 0.0, 1.0, 2.0, 3.0]
    assert finished == [True]


class Watched(asyncio.Event):
    """Tells when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.awaited = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.awaited.set()
        return await super().wait()


async def test_paused_recording_continues_at_its_position() -> None:
    clock, running = VirtualClock(), Watched()
    ear = Ear(clock, most=3)
    samples = np.arange(3 * RATE, dtype=np.float32)
    async with FileStream(ear.listen, samples, running=running, clock=clock) as stream:
        await asyncio.wait_for(running.awaited.wait(), PATIENCE_S)
        clock.time += 10.0
        running.set()
        await asyncio.wait_for(stream.wait_sent(), PATIENCE_S)
    assert ear.times == [11.0, 12.0, 13.0]
    assert np.array_equal(np.concatenate([heard for _, heard in ear.heard]), samples)
