"""Microphone and speaker of this machine through PortAudio; the extra `mic` is required."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any, Final, Self, TypeVar

import numpy as np

from antiphon.audio.samples import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Samples
from antiphon.errors import AudioError

INSTALL: Final = "pip install 'antiphon[mic]'"
"""The install command for sounddevice, which needs PortAudio, and soxr."""

T = TypeVar("T")

Device = int | str | None
"""The number of a device or a part of its name, as in `python -m sounddevice`; None is the default."""

MOST_WAITING_S: Final = 10.0
"""The seconds of audio that a microphone buffers for a slow reader; older audio is dropped."""

MOST_UNPLAYED_S: Final = 120.0
"""The seconds of audio that a speaker buffers; beyond that the oldest audio is dropped."""

_BLOCK_S: Final = 0.1


class Microphone:
    """An iterator over recorded audio: `async with Microphone() as blocks: async for ...`.

    Each block is about 0.1 s of mono float32 samples at 16 kHz, shape `(samples,)`. Audio from a device with
    another rate is resampled. Raises `AudioError` if the extra `mic` is not installed, or if the device
    cannot be used or stops; its text names the remedy.
    """

    def __init__(self, device: Device = None) -> None:
        self.dropped_s = 0.0
        """The seconds of audio that were dropped because the program read too slowly."""
        self._stream = _Stream("microphone", device)
        self._blocks: deque[Samples] = deque()
        self._waiting_s = 0.0
        self._resampler: Any = None
        self._changed = asyncio.Event()

    async def __aenter__(self) -> Self:
        stream = self._stream
        rate_hz = await stream.open("input", INPUT_RATE_HZ, self._record)
        self._resampler = _resampler(rate_hz, INPUT_RATE_HZ)
        stream.on_end = self._changed.set
        await stream.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stream.close()
        self._changed.set()

    def skip(self) -> None:
        """Drop the recorded audio that has not been read yet."""
        self._blocks.clear()
        self._waiting_s = 0.0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Samples:
        while not self._blocks:
            if self._stream.is_closed:
                raise StopAsyncIteration
            self._stream.check()
            self._changed.clear()
            await self._changed.wait()
        block = self._blocks.popleft()
        self._waiting_s -= len(block) / INPUT_RATE_HZ
        return block

    def _record(self, data: Any, frames: int, time: object, status: object) -> None:
        """Receive a block in PortAudio's thread; copy it, since PortAudio reuses the array."""
        self._stream.later(self._take, data[:, 0].copy())

    def _take(self, samples: Samples) -> None:
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples)
        if not len(samples):
            return
        self._blocks.append(samples)
        self._waiting_s += len(samples) / INPUT_RATE_HZ
        while self._waiting_s > MOST_WAITING_S:
            seconds = len(self._blocks.popleft()) / INPUT_RATE_HZ
            self._waiting_s -= seconds
            self.dropped_s += seconds
        self._changed.set()


class Speaker:
    """A playback queue of samples: `async with Speaker() as speaker: speaker.play(samples)`.

    Raises `AudioError` if the extra `mic` is not installed, or if the device cannot be used or stops; its
    text names the remedy.
    """

    def __init__(self, device: Device = None) -> None:
        self.dropped_s = 0.0
        """The seconds of audio that were dropped because more than two minutes were buffered."""
        self._stream = _Stream("speaker", device)
        self._rate_hz = OUTPUT_RATE_HZ
        self._resampler: Any = None
        self._lock = threading.Lock()
        self._pieces: deque[Samples] = deque()
        self._unplayed = 0
        """The number of samples in `_pieces`; PortAudio's thread uses both, and the lock guards them."""
        self._silent = asyncio.Event()

    async def __aenter__(self) -> Self:
        stream = self._stream
        self._rate_hz = await stream.open("output", OUTPUT_RATE_HZ, self._fill)
        self._resampler = _resampler(OUTPUT_RATE_HZ, self._rate_hz)
        self._silent.set()
        stream.on_end = self._silent.set
        await stream.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stream.close()
        self._silent.set()

    def play(self, samples: Samples) -> None:
        """Queue mono float32 samples at 24 kHz, shape `(samples,)`, for playback; never waits."""
        self._stream.check()
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(np.ascontiguousarray(samples, np.float32))
        if not len(samples):
            return
        self._silent.clear()
        with self._lock:
            self._pieces.append(samples)
            self._unplayed += len(samples)
            while self._unplayed > MOST_UNPLAYED_S * self._rate_hz:
                dropped = len(self._pieces.popleft())
                self._unplayed -= dropped
                self.dropped_s += dropped / self._rate_hz

    def interrupt(self) -> None:
        """Drop the audio that has not been played yet."""
        with self._lock:
            self._pieces.clear()
            self._unplayed = 0
        self._resampler = _resampler(OUTPUT_RATE_HZ, self._rate_hz)
        self._silent.set()

    async def wait_played(self) -> None:
        """Wait until everything is played, or until the device has stopped."""
        await self._silent.wait()

    def _fill(self, out: Any, frames: int, time: object, status: object) -> None:
        """Hand over the next samples in PortAudio's thread; fill an underrun with silence."""
        filled = 0
        with self._lock:
            had_any = bool(self._pieces)
            while filled < frames and self._pieces:
                piece = self._pieces.popleft()
                part = piece[: frames - filled]
                out[filled : filled + len(part), 0] = part
                filled += len(part)
                if len(part) < len(piece):
                    self._pieces.appendleft(piece[len(part) :])
            self._unplayed -= filled
        out[filled:, 0] = 0.0
        if had_any:
            self._stream.later(self._check_silence)

    def _check_silence(self) -> None:
        with self._lock:
            is_silent = not self._pieces
        if is_silent:
            self._silent.set()


class _Stream:
    """A PortAudio stream that opens and closes in another thread, since a device may block for long."""

    def __init__(self, name: str, device: Device) -> None:
        self.is_closed = False
        self.on_end: Callable[[], object] = lambda: None
        self._name = name
        self._device = device
        self._ended = False
        self._stream: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self, side: str, rate_hz: int, callback: Any) -> int:
        """Open an `input` or `output` stream; return its rate: `rate_hz`, or else the device's own rate."""
        self._loop = asyncio.get_running_loop()
        module = _sounddevice()

        def opened() -> int:
            chosen = _rate_hz(module, side, self._device, rate_hz)
            kind = module.InputStream if side == "input" else module.OutputStream
            self._stream = kind(
                samplerate=chosen,
                blocksize=round(chosen * _BLOCK_S),
                device=self._device,
                channels=1,
                dtype="float32",
                callback=callback,
                finished_callback=self._on_finished,
            )
            return chosen

        try:
            return await self._in_thread(opened)
        except (module.PortAudioError, ValueError) as error:
            raise AudioError(f"Cannot use the {self._name}: {_message(error)} {_LIST}") from None

    async def start(self) -> None:
        """Start the stream. Raises `AudioError`."""
        try:
            await self._in_thread(self._stream.start)
        except _sounddevice().PortAudioError as error:
            await self.close()
            raise AudioError(f"Cannot start the {self._name}: {_message(error)} {_LIST}") from None

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """Run a PortAudio call to its end; the stream is closed if this task is cancelled meanwhile."""
        running = asyncio.ensure_future(asyncio.to_thread(call))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait({running})
            await self.close()
            raise

    async def close(self) -> None:
        """Stop at once. Repeated calls do nothing."""
        self.is_closed = True
        stream, self._stream = self._stream, None
        if stream is not None:
            await asyncio.to_thread(stream.close)

    def check(self) -> None:
        """Raise `AudioError` if the device has stopped by itself."""
        if self._ended:
            raise AudioError(f"The {self._name} stopped. Was it unplugged? {_LIST}")

    def later(self, call: Any, *arguments: Any) -> None:
        """Call a function on the event loop, from PortAudio's thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            return  # the loop is closed, so the program reads no more audio

    def _on_finished(self) -> None:
        self.later(self._end)

    def _end(self) -> None:
        if not self.is_closed:
            self._ended = True
            self.on_end()


_LIST: Final = "`python -m sounddevice` lists the devices."


def _sounddevice() -> ModuleType:
    """Return the `sounddevice` module.

    Raises `AudioError` if it, or the library that it loads, is not installed.
    """
    try:
        import sounddevice
        import soxr  # noqa: F401  of the same extra
    except ImportError as error:
        text = f"Microphone and speakers need the package {error.name}. Install with: {INSTALL}"
        raise AudioError(text) from None
    except OSError:
        text = "Microphone and speakers need the library PortAudio."
        raise AudioError(f"{text} On Debian and Ubuntu: apt-get install libportaudio2") from None
    module: ModuleType = sounddevice
    return module


def _rate_hz(module: ModuleType, side: str, device: Device, wanted_hz: int) -> int:
    """Return the wanted rate if the device has it, else the device's own."""
    info = module.query_devices(device, side)
    check = module.check_input_settings if side == "input" else module.check_output_settings
    try:
        check(device=device, channels=1, dtype="float32", samplerate=wanted_hz)
    except module.PortAudioError:
        return int(info["default_samplerate"])
    return wanted_hz


def _message(error: Exception) -> str:
    text = str(error.args[0]) if error.args else type(error).__name__
    return text.rstrip(".") + "."


def _resampler(from_hz: int, to_hz: int) -> Any:
    """Return a `soxr.ResampleStream` of one channel, or None if the rates are equal."""
    if from_hz == to_hz:
        return None
    import soxr

    return soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")
