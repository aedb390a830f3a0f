"""WAV files that clients send: 16, 24 and 32 bit PCM and float32, one or two channels."""

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import soxr

from ws_adapter.protocol.wire.codec import Samples, bounded
from ws_adapter.protocol.wire.errors import Refusal, invalid

LOWEST_RATE_HZ: Final = 8_000
HIGHEST_RATE_HZ: Final = 48_000

MAX_CHUNKS: Final = 64
"""The most chunks of a file up to its samples. Studios write a dozen; an attacker may write a million."""

_PCM: Final = 1
_FLOAT: Final = 3
_EXTENSIBLE: Final = 0xFFFE
_STREAMED_SIZE: Final = 0x7FFF_0000
"""The smallest size in a header that means an unknown size, as in files that were written to a pipe."""
_FORMATS: Final = {(_PCM, 16), (_PCM, 24), (_PCM, 32), (_FLOAT, 32)}


@dataclass(frozen=True)
class Sound:
    """Mono audio within [-1, 1] at its own rate; `clipped` samples were outside."""

    samples: Samples
    rate_hz: int
    clipped: int = 0

    @property
    def seconds(self) -> float:
        """The length in seconds."""
        return self.samples.size / self.rate_hz

    def at(self, rate_hz: int) -> Samples:
        """Return the samples at another rate. They may leave [-1, 1] a little."""
        if self.rate_hz == rate_hz or not self.samples.size:
            return self.samples
        resampled: Samples = soxr.resample(self.samples, self.rate_hz, rate_hz)
        return resampled


def is_wav(data: bytes) -> bool:
    """Return whether `data` has the header of a WAV file."""
    return data.startswith(b"RIFF")


def read_wav(data: bytes, path: str) -> Sound:
    """Return the audio in a WAV file, channels averaged; `path` is that of the field. Raises `Refusal`."""
    layout, body = _chunks(data, path)
    if (layout.encoding, layout.bits) not in _FORMATS:
        raise invalid(path, f"expected WAV of 16, 24 or 32 bits PCM or float32, got {layout.bits} bits")
    if layout.channels not in (1, 2):
        raise invalid(path, f"expected WAV of 1 or 2 channels, got {layout.channels}")
    if not LOWEST_RATE_HZ <= layout.rate_hz <= HIGHEST_RATE_HZ:
        allowed = f"{LOWEST_RATE_HZ} to {HIGHEST_RATE_HZ} Hz"
        raise invalid(path, f"expected WAV of {allowed}, got {layout.rate_hz} Hz")
    frame = layout.channels * layout.bits // 8
    # Checked before resampling, which would spread one NaN over all samples.
    clip = bounded(_samples(layout, body[: len(body) // frame * frame]), path)
    mono: Samples = clip.samples.reshape(-1, layout.channels).mean(axis=1, dtype=np.float32)
    return Sound(mono, layout.rate_hz, clip.clipped)


@dataclass(frozen=True)
class _Layout:
    """The content of a WAV file's `fmt ` chunk."""

    encoding: int
    channels: int
    rate_hz: int
    bits: int


def _samples(layout: _Layout, body: memoryview) -> Samples:
    if layout.encoding == _FLOAT:
        return np.frombuffer(body, "<f4")
    if layout.bits == 24:
        # Three bytes become the upper three of four, which keeps the sign.
        wide = np.zeros((len(body) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(body, np.uint8).reshape(-1, 3)
        integers = wide.reshape(-1).view("<i4")
    else:
        integers = np.frombuffer(body, f"<i{layout.bits // 8}")
    scaled: Samples = integers.astype(np.float32) / np.float32(np.iinfo(integers.dtype).max + 1)
    return scaled


def _chunks(data: bytes, path: str) -> tuple[_Layout, memoryview]:
    """Return format and sample bytes; sizes in headers are checked against the bytes that are really
    there."""
    damaged = invalid(path, "the WAV file is damaged: its format or its samples are missing")
    if data[8:12] != b"WAVE":
        raise damaged
    layout: _Layout | None = None
    view, position = memoryview(data), 12
    for _ in range(MAX_CHUNKS):
        if position + 8 > len(data):
            raise damaged
        name, size = struct.unpack_from("<4sI", data, position)
        body = view[position + 8 : position + 8 + size]
        if len(body) < size < _STREAMED_SIZE:
            raise damaged
        if name == b"fmt ":
            layout = _layout(body, damaged)
        elif name == b"data" and layout is not None:
            return layout, body
        position += 8 + size + size % 2
    raise invalid(path, f"expected WAV with its samples among the first {MAX_CHUNKS} chunks, got more")


def _layout(body: memoryview, damaged: Refusal) -> _Layout:
    if len(body) < 16:
        raise damaged
    encoding, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", body)
    if encoding == _EXTENSIBLE and len(body) >= 26:
        (encoding,) = struct.unpack_from("<H", body, 24)
    return _Layout(encoding, channels, rate_hz, bits)
