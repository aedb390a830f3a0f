"""WAV files: reads what can be sent as it is, writes what was heard."""

import struct
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from antiphon.audio import INPUT_RATE_HZ, OUTPUT_RATE_HZ, Samples
from antiphon.errors import AudioError

_PCM: Final = 1
_FLOAT: Final = 3
_EXTENSIBLE: Final = 0xFFFE


@dataclass(frozen=True)
class _Format:
    """What the `fmt ` chunk says about the samples."""

    encoding: int
    channels: int
    rate_hz: int
    bits: int


def read_wav(path: str | Path, rate_hz: int = INPUT_RATE_HZ) -> Samples:
    """Reads a mono WAV file of `rate_hz` samples per second, PCM16 or float32, as float32 samples.

    Raises `AudioError`, whose text names the remedy, for any other file, and OSError if it cannot be read.
    """
    layout, data = _chunks(Path(path))
    if layout.rate_hz != rate_hz or layout.channels != 1:
        channels = "1 channel" if layout.channels == 1 else f"{layout.channels} channels"
        raise _unfit(path, f"has {layout.rate_hz} Hz and {channels}", rate_hz)
    if (layout.encoding, layout.bits) == (_PCM, 16):
        samples = np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.float32) / np.float32(32768)
    elif (layout.encoding, layout.bits) == (_FLOAT, 32):
        samples = np.frombuffer(data[: len(data) // 4 * 4], "<f4").astype(np.float32)
    else:
        raise _unfit(path, f"has {layout.bits}-bit samples of WAV format {layout.encoding}", rate_hz)
    if not samples.size:
        raise AudioError(f"{path} holds no samples. Record it again, or name another file.")
    if not np.isfinite(samples).all():
        raise AudioError(f"{path} holds NaN or infinity among its samples. Record it again.")
    return samples


def write_wav(path: str | Path, samples: Samples, rate_hz: int = OUTPUT_RATE_HZ) -> None:
    """Writes float32 samples in [-1, 1], shape `(samples,)`, as a mono PCM16 WAV file; louder ones are
    clipped."""
    pcm = (np.clip(samples, -1.0, 1.0) * 32767).round().astype("<i2")
    with Path(path).open("wb") as raw, wave.open(raw, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate_hz)
        file.writeframes(pcm.tobytes())


def _chunks(path: Path) -> tuple[_Format, bytes]:
    """The format and the sample bytes of a RIFF file; chunk sizes are held against the real bytes."""
    raw = path.read_bytes()
    if raw[:4] != b"RIFF" or raw[8:12] != b"WAVE":
        raise AudioError(f"{path} is no WAV file. Convert it: {_command(path, INPUT_RATE_HZ)}")
    layout: _Format | None = None
    position = 12
    while position + 8 <= len(raw):
        name, size = struct.unpack_from("<4sI", raw, position)
        body = raw[position + 8 : position + 8 + size]
        if name == b"fmt " and len(body) >= 16:
            layout = _format(body)
        elif name == b"data" and layout is not None:
            return layout, body
        position += 8 + size + size % 2
    raise AudioError(f"{path} is a damaged WAV file: its format or its samples are missing. Record it again.")


def _format(body: bytes) -> _Format:
    encoding, channels, rate_hz, _, _, bits = struct.unpack_from("<HHIIHH", body)
    if encoding == _EXTENSIBLE and len(body) >= 26:
        (encoding,) = struct.unpack_from("<H", body, 24)
    return _Format(encoding, channels, rate_hz, bits)


def _unfit(path: str | Path, what: str, rate_hz: int) -> AudioError:
    need = f"mono at {rate_hz} Hz in PCM16 or float32 is needed"
    return AudioError(f"{path} {what}; {need}. Convert it: {_command(path, rate_hz)}")


def _command(path: str | Path, rate_hz: int) -> str:
    source = Path(path)
    target = source.with_name(f"{source.stem}-{rate_hz}.wav")
    return f"ffmpeg -i {source} -ac 1 -ar {rate_hz} -c:a pcm_s16le {target}"
