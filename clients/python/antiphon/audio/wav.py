"""WAV files: reading of files that need no conversion, and writing."""

import struct
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from antiphon.audio.samples import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Samples
from antiphon.errors import AudioError

_PCM: Final = 1
_FLOAT: Final = 3
_EXTENSIBLE: Final = 0xFFFE
_DTYPES: Final = {(_PCM, 16): "<i2", (_FLOAT, 32): "<f4"}


class NeedsConversion(AudioError):
    """A recording whose format, rate or number of channels needs conversion."""


@dataclass(frozen=True)
class Layout:
    """The storage format of a WAV file's samples, from its `fmt ` chunk."""

    encoding: int
    channels: int
    rate_hz: int
    bits: int

    @classmethod
    def pcm16(cls, rate_hz: int) -> "Layout":
        """Return the layout of mono 16-bit samples at `rate_hz`."""
        return cls(_PCM, 1, rate_hz, 16)

    def check(self, name: str | Path, rate_hz: int) -> None:
        """Raise `AudioError` unless the samples can be sent as they are.

        `name` is the file name for the message.
        """
        need = f"mono at {rate_hz} Hz in PCM16 or float32 is needed. Convert it: {_command(name, rate_hz)}"
        if self.rate_hz != rate_hz or self.channels != 1:
            channels = "1 channel" if self.channels == 1 else f"{self.channels} channels"
            raise NeedsConversion(f"{name} has {self.rate_hz} Hz and {channels}; {need}")
        if (self.encoding, self.bits) not in _DTYPES:
            raise NeedsConversion(f"{name} has {self.bits}-bit samples of WAV format {self.encoding}; {need}")

    @property
    def sample_bytes(self) -> int:
        """The size of one sample in bytes."""
        return self.bits // 8

    def decode(self, data: bytes) -> Samples:
        """Decode samples of a checked layout; an incomplete sample at the end is left out."""
        whole = np.frombuffer(data[: len(data) // self.sample_bytes * self.sample_bytes], self._dtype)
        return whole.astype(np.float32) / np.float32(1 if self.encoding == _FLOAT else 32768)

    @property
    def _dtype(self) -> str:
        return _DTYPES[self.encoding, self.bits]


def read_wav(path: str | Path, rate_hz: int = INPUT_RATE_HZ) -> Samples:
    """Read a mono WAV file of `rate_hz` samples per second, PCM16 or float32, as float32 samples.

    Raises `AudioError`, whose text names the remedy, for any other file. Raises OSError if the file cannot be
    read.
    """
    return decode_wav(Path(path).read_bytes(), path, rate_hz)


def decode_wav(raw: bytes, name: str | Path, rate_hz: int) -> Samples:
    """Return the samples of a WAV file in memory, as `read_wav` does; `name` appears in error messages."""
    if not is_wav(raw):
        raise not_a_wav(name)
    header = read_header(raw)
    if header is None:
        raise AudioError(
            f"{name} is a damaged WAV file: its format or its samples are missing. Record it again."
        )
    layout, start, size = header
    layout.check(name, rate_hz)
    samples = layout.decode(raw[start : start + size])
    if not samples.size:
        raise AudioError(f"{name} holds no samples. Record it again, or name another file.")
    if not np.isfinite(samples).all():
        raise AudioError(f"{name} holds NaN or infinity among its samples. Record it again.")
    return samples


def write_wav(path: str | Path, samples: Samples, rate_hz: int = OUTPUT_RATE_HZ) -> None:
    """Write float32 samples in [-1, 1], shape `(samples,)`, as a mono PCM16 WAV file.

    Louder samples are clipped.
    """
    pcm = (np.clip(samples, -1.0, 1.0) * 32767).round().astype("<i2")
    with Path(path).open("wb") as raw, wave.open(raw, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(pcm.tobytes())


def is_wav(raw: bytes) -> bool:
    """Return whether these bytes begin like a WAV file."""
    return raw[:4] == b"RIFF" and raw[8:12] == b"WAVE"


def read_header(raw: bytes) -> tuple[Layout, int, int] | None:
    """Return the layout of the samples, their offset and their declared length in bytes.

    Returns None if `raw` ends before that is known. The file may hold fewer bytes than it declares.
    """
    layout: Layout | None = None
    position = 12
    while position + 8 <= len(raw):
        name, size = struct.unpack_from("<4sI", raw, position)
        if name == b"data" and layout is not None:
            return layout, position + 8, size
        body = raw[position + 8 : position + 8 + size]
        if name == b"fmt " and len(body) >= 16:
            layout = _layout(body)
        position += 8 + size + size % 2
    return None


def _layout(body: bytes) -> Layout:
    encoding, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", body)
    if encoding == _EXTENSIBLE and len(body) >= 26:
        (encoding,) = struct.unpack_from("<H", body, 24)
    return Layout(encoding, channels, rate_hz, bits)


def not_a_wav(name: str | Path) -> AudioError:
    """Return the error for a file that is no WAV file."""
    return NeedsConversion(f"{name} is no WAV file. Convert it: {_command(name, INPUT_RATE_HZ)}")


def _command(name: str | Path, rate_hz: int) -> str:
    source = Path(name)
    target = source.with_name(f"{source.stem}-{rate_hz}.wav")
    return f"ffmpeg -i {source} -ac 1 -ar {rate_hz} -c:a pcm_s16le {target}"
