"""Recordings of any rate and number of channels, converted to samples that can be sent."""

import io
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from antiphon.audio.samples import INPUT_RATE_HZ, Samples
from antiphon.audio.wav import NeedsConversion, decode_wav
from antiphon.errors import AudioError

INSTALL: Final = "pip install 'antiphon[audio]'"
"""The install command for soundfile, which reads files, and soxr, which resamples."""

LONGEST_S: Final = 4 * 3600
"""The longest recording in seconds that is decoded: a small compressed file may hold days of silence."""

_LOWEST_HZ: Final = 4_000
_HIGHEST_HZ: Final = 384_000
_BLOCK_S: Final = 10


def read_audio(path: str | Path, rate_hz: int = INPUT_RATE_HZ) -> Samples:
    """Read a recording as mono float32 samples at `rate_hz`, shape `(samples,)`.

    A mono WAV file at `rate_hz` in PCM16 or float32 needs no conversion. Every other file that libsndfile
    reads, such as WAV or FLAC, needs the extra `audio`: its channels are averaged, and it is resampled.
    Raises `AudioError`, whose text names the remedy, and OSError.
    """
    raw = Path(path).read_bytes()
    try:
        return decode_wav(raw, path, rate_hz)
    except NeedsConversion as error:
        refusal = error
    try:
        import soundfile
        import soxr
    except (ImportError, OSError):  # OSError: the library that soundfile loads is missing
        raise AudioError(f"{refusal} Or have it converted here: {INSTALL}") from None
    try:
        return _convert(raw, path, rate_hz, soundfile, soxr)
    except soundfile.SoundFileError:
        raise refusal from None


def _convert(raw: bytes, name: str | Path, rate_hz: int, soundfile: ModuleType, soxr: ModuleType) -> Samples:
    with soundfile.SoundFile(io.BytesIO(raw)) as file:
        _check(name, file.samplerate, file.frames)
        resampler = soxr.ResampleStream(file.samplerate, rate_hz, 1, dtype="float32")
        found = [resampler.resample_chunk(block) for block in _mono_blocks(file)]
        found.append(resampler.resample_chunk(np.zeros(0, np.float32), last=True))
    samples: Samples = np.concatenate(found)
    if not samples.size:
        raise AudioError(f"{name} holds no samples. Record it again, or name another file.")
    if not np.isfinite(samples).all():
        raise AudioError(f"{name} holds NaN or infinity among its samples. Record it again.")
    return samples


def _mono_blocks(file: Any) -> Iterator[Samples]:
    """Yield the recording block by block, its channels averaged; `file` is a `soundfile.SoundFile`."""
    for block in file.blocks(_BLOCK_S * file.samplerate, dtype="float32", always_2d=True):
        yield block.mean(axis=1, dtype=np.float32)


def _check(name: str | Path, rate_hz: int, frames: int) -> None:
    """Raise `AudioError` for a rate or a length that no recording of speech has."""
    if not _LOWEST_HZ <= rate_hz <= _HIGHEST_HZ:
        raise AudioError(f"{name} has {rate_hz} Hz; {_LOWEST_HZ} to {_HIGHEST_HZ} Hz can be converted.")
    if frames > LONGEST_S * rate_hz:
        raise AudioError(f"{name} is longer than {LONGEST_S // 3600} h. Send it in parts.")
