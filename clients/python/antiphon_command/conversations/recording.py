"""The audio that a command sends: a file, or a stream on standard input."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from antiphon.audio.files import read_audio
from antiphon.audio.samples import INPUT_RATE_HZ, Samples, pieces
from antiphon.audio.wav import Layout, is_wav, not_a_wav, read_header
from antiphon.errors import AudioError

_STDIN: Final = 0
_NAME: Final = "stdin.wav"
_READ_BYTES: Final = 1 << 16
_WAITING_READS: Final = 16
_LONGEST_HEADER: Final = 1 << 16
_NO_SIZE: Final = 0x7FFF_0000
"""The smallest size in a header that means "unknown", from programs that write a stream."""

_RIFF: Final = b"RIFF"
_RAW: Final = Layout.pcm16(INPUT_RATE_HZ)


class Recording(Protocol):
    """Mono audio at 16 kHz."""

    def chunks(self) -> AsyncIterator[Samples]:
        """Yield the audio in order, at most a second at a time. Raises `AudioError`."""


class FileRecording:
    """A recording in a file that `read_audio` reads. Raises `AudioError` for any other, and OSError."""

    def __init__(self, path: Path) -> None:
        self._samples = read_audio(path)

    async def chunks(self) -> AsyncIterator[Samples]:
        for chunk in pieces(self._samples, INPUT_RATE_HZ):
            yield chunk


class PipedRecording:
    """A recording on standard input: a WAV file, or raw PCM16 at 16 kHz.

    A thread reads it: a read of a pipe may block for long, and asyncio cannot await a file. The thread ends
    with the process.
    """

    def __init__(self) -> None:
        self._decoder = _Decoder()
        self._reads: asyncio.Queue[bytes] = asyncio.Queue()
        self._room = threading.Semaphore(_WAITING_READS)
        self._stopped = asyncio.Event()

    async def chunks(self) -> AsyncIterator[Samples]:
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, args=(loop,), daemon=True, name="standard input").start()
        stopped = asyncio.create_task(self._stopped.wait())
        try:
            while data := await self._next(stopped):
                for chunk in pieces(self._decoder.feed(data), INPUT_RATE_HZ):
                    yield chunk
        finally:
            stopped.cancel()
        self._decoder.end()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the recording here."""
        self._stopped.set()

    async def _next(self, stopped: "asyncio.Task[bool]") -> bytes:
        """Return the next bytes, b"" at the end."""
        reading = asyncio.create_task(self._reads.get())
        try:
            await asyncio.wait({reading, stopped}, return_when=asyncio.FIRST_COMPLETED)
            return reading.result() if reading.done() else b""
        finally:
            reading.cancel()
            self._room.release()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        data = b"to begin with"
        while data:
            self._room.acquire()
            try:
                data = os.read(_STDIN, _READ_BYTES)
            except OSError:
                data = b""  # there is no standard input
            try:
                loop.call_soon_threadsafe(self._reads.put_nowait, data)
            except RuntimeError:
                return  # the loop is closed, so no task reads any more


class _Decoder:
    """A streaming decoder from bytes to samples."""

    def __init__(self) -> None:
        self._layout: Layout | None = None
        self._rest = b""
        self._left: int | None = None
        self._heard = False

    def feed(self, data: bytes) -> Samples:
        """Return the samples that these bytes complete, perhaps none. Raises `AudioError`."""
        self._rest += data if self._left is None else data[: self._left]
        if self._left is not None:
            self._left -= min(self._left, len(data))
        if self._layout is None and not self._read_header():
            return np.zeros(0, np.float32)
        assert self._layout is not None
        whole = len(self._rest) // self._layout.sample_bytes * self._layout.sample_bytes
        samples, self._rest = self._layout.decode(self._rest[:whole]), self._rest[whole:]
        self._heard = self._heard or len(samples) > 0
        return samples

    def end(self) -> None:
        """Raise `AudioError` if there was no audio at all."""
        if not self._heard:
            raise AudioError("Standard input held no audio. Pipe in a WAV file, or PCM16 at 16 kHz.")

    def _read_header(self) -> bool:
        """Return whether the header is complete and the rest is samples."""
        if not _RIFF.startswith(self._rest[:4]) and not self._rest.startswith(_RIFF):
            self._layout = _RAW
            return True
        header = read_header(self._rest) if is_wav(self._rest) else None
        if header is None:
            if len(self._rest) > _LONGEST_HEADER:
                raise not_a_wav(_NAME)
            return False
        layout, start, size = header
        layout.check(_NAME, INPUT_RATE_HZ)
        self._layout, self._rest = layout, self._rest[start:]
        if 0 < size < _NO_SIZE:
            self._left = max(0, size - len(self._rest))
            self._rest = self._rest[:size]
        return True
