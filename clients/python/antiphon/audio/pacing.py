"""Pacing of a recording at the rate of a microphone."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Final, Protocol, Self

import numpy as np

from antiphon.audio.samples import INPUT_RATE_HZ, Samples, pieces
from antiphon.errors import SessionClosed

CHUNK_S: Final = 1.0
"""Seconds of audio in each chunk."""

_CHUNK: Final = int(CHUNK_S * INPUT_RATE_HZ)


class Clock(Protocol):
    """A source of time that sets the pace."""

    def now(self) -> float:
        """Return monotonic seconds since an arbitrary start."""

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""


class RealTime:
    """The monotonic clock of the machine."""

    def now(self) -> float:
        """Return monotonic seconds."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Sleep for `seconds`."""
        await asyncio.sleep(seconds)


class Pace:
    """The schedule of audio: audio is sent when a microphone would have recorded it, or `lead_s` earlier."""

    def __init__(self, lead_s: float = 0.0, clock: Clock | None = None) -> None:
        self._lead_s = lead_s
        self._clock = clock or RealTime()
        self._start = self._clock.now()
        self._samples = 0

    async def hold(self, running: asyncio.Event) -> None:
        """Wait until `running` is set; the schedule of the remaining audio shifts by the wait."""
        if not running.is_set():
            began = self._clock.now()
            await running.wait()
            self._start += self._clock.now() - began

    async def wait(self, samples: int) -> None:
        """Wait until the next `samples` may be sent; a late call does not delay later samples."""
        self._samples += samples
        due = self._start + self._samples / INPUT_RATE_HZ - self._lead_s
        await self._clock.sleep(max(0.0, due - self._clock.now()))


class FileStream:
    """A sender of samples in real time, or `lead_s` ahead of it, while its block is open.

    Each chunk of one second goes out when a microphone would have recorded its last sample, or `lead_s`
    before that; a late chunk does not delay the next. `finish` is called when the whole recording is sent.
    With `then_silence` the last chunk is padded with silence, and a second of silence follows every second: a
    model answers only while it gets input. Without it nothing is sent after the recording. The recording
    pauses while `running` is not set.
    """

    def __init__(
        self,
        send: Callable[[Samples], Awaitable[object]],
        samples: Samples,
        *,
        then_silence: bool = False,
        lead_s: float = 0.0,
        running: asyncio.Event | None = None,
        finish: Callable[[], Awaitable[object]] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.duration_s = len(samples) / INPUT_RATE_HZ
        """The length of the recording in seconds."""
        self._send = send
        self._samples = samples
        self._then_silence = then_silence
        self._lead_s = lead_s
        self._running = running
        self._finish = finish
        self._clock = clock
        self._sent = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def sent(self) -> bool:
        """Whether the whole recording was sent; the silence after it does not count."""
        return self._sent.is_set()

    async def wait_sent(self) -> None:
        """Wait until the whole recording is sent, or until the conversation ends."""
        if self._task is None:
            raise RuntimeError("the stream is not running: open its block with `async with`")
        sent = asyncio.ensure_future(self._sent.wait())
        try:
            await asyncio.wait({sent, self._task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sent.cancel()

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="antiphon file stream")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait({self._task})
        if error is None and not self._task.cancelled():
            self._task.result()

    async def _run(self) -> None:
        pace = Pace(self._lead_s, self._clock)
        # Iterating over the conversation reports its end, so this task ends without an error.
        with contextlib.suppress(SessionClosed):
            out = 0
            for chunk in self._chunks():
                out += len(chunk)
                await pace.wait(len(chunk))
                if self._running is not None:
                    await pace.hold(self._running)
                await self._send(chunk)
                if out >= len(self._samples) and not self._sent.is_set():
                    if self._finish is not None:
                        await self._finish()
                    self._sent.set()

    def _chunks(self) -> Iterator[Samples]:
        for chunk in pieces(self._samples, _CHUNK):
            if self._then_silence and len(chunk) < _CHUNK:
                chunk = np.pad(chunk, (0, _CHUNK - len(chunk)))
            yield chunk
        silence = np.zeros(_CHUNK, np.float32)
        while self._then_silence:
            yield silence
