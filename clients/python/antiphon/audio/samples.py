"""Conversions between numpy arrays (float32, mono, full scale at -1 and 1) and the bytes on the wire."""

import base64
import binascii
from collections.abc import Iterator
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import AudioError, ProtocolError

Samples: TypeAlias = NDArray[np.float32]
"""Mono audio, shape `(samples,)`."""

INPUT_RATE_HZ: Final = 16_000
"""The sample rate of all audio that is sent, in Hz."""

OUTPUT_RATE_HZ: Final = 24_000
"""The sample rate of all audio that is received, in Hz."""

_WIRE_DTYPE: Final = np.dtype("<f4")


def as_samples(audio: Samples | bytes | bytearray | memoryview) -> Samples:
    """Check the audio to send and return it: float32, one dimension, finite, not empty.

    Takes an array of shape `(samples,)` or the bytes of little-endian float32 samples. Raises `AudioError`.
    """
    if isinstance(audio, bytes | bytearray | memoryview):
        if memoryview(audio).nbytes % _WIRE_DTYPE.itemsize:
            raise AudioError("The bytes are not whole float32 samples: their number is no multiple of 4.")
        samples: NDArray[np.float32] = np.frombuffer(audio, _WIRE_DTYPE)
    else:
        samples = np.asarray(audio)
    if samples.dtype != np.float32:
        raise AudioError(
            f"The samples are {samples.dtype}, float32 in [-1, 1] is needed. "
            "Use samples.astype(np.float32), and for int16 divide that by 32768."
        )
    if samples.ndim != 1:
        raise AudioError(
            f"The array has shape {samples.shape}, mono of shape (samples,) is needed. Average the channels."
        )
    if not samples.size:
        raise AudioError("There are no samples to send.")
    if not np.isfinite(samples).all():
        raise AudioError(
            "The samples contain NaN or infinity. Replace them, e.g. with np.nan_to_num(samples)."
        )
    return samples


def to_base64(samples: Samples) -> str:
    """Return the samples as base64 of float32, the encoding of conversations."""
    return base64.b64encode(np.asarray(samples, _WIRE_DTYPE).tobytes()).decode("ascii")


def to_base64_pcm16(samples: Samples) -> str:
    """Return the samples as base64 of little-endian int16, the encoding of transcription.

    Louder samples are clipped.
    """
    pcm = np.clip(np.rint(samples * np.float32(32768)), -32768, 32767).astype("<i2")
    return base64.b64encode(pcm.tobytes()).decode("ascii")


def from_base64(text: str) -> Samples:
    """Decode samples from the server's base64. Raises `ProtocolError` if they are malformed."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ProtocolError("The server sent audio that is no base64.", reason="invalid_audio") from None
    return from_bytes(data)


def from_bytes(data: bytes) -> Samples:
    """Decode samples from the server's bytes.

    Raises `ProtocolError` unless they are whole float32 samples.
    """
    if len(data) % _WIRE_DTYPE.itemsize:
        raise ProtocolError("The server sent a part of a float32 sample.", reason="invalid_audio")
    return np.frombuffer(data, _WIRE_DTYPE)


def pieces(samples: Samples, most: int) -> Iterator[Samples]:
    """Cut the samples into views of at most `most` samples, in order."""
    for start in range(0, len(samples), most):
        yield samples[start : start + most]
