"""Decoding of AudioChunk bytes to samples, with strict checks."""

from math import isfinite

import numpy as np
from numpy.typing import NDArray

from antiphon.contract import Reason
from antiphon.v1 import common_pb2
from inference_service.errors import UnitRefused

PEAK_LIMIT = 16.0
"""Absolute value above which a sample is not an overdriven recording but other data."""

_LAYOUTS: dict[int, tuple[str, float]] = {
    common_pb2.AUDIO_ENCODING_PCM_F32LE: ("<f4", 1.0),
    common_pb2.AUDIO_ENCODING_PCM_S16LE: ("<i2", 1 / 32768),
}


def decode_pcm(
    chunk: common_pb2.AudioChunk, *, field: str, sample_rate_hz: int, max_samples: int | None = None
) -> NDArray[np.float32]:
    """Return the samples of `chunk` as float32 in [-1, 1], shape [samples]: one or more, at most
    `max_samples`.

    The array may be read-only.

    `field` is the path of `chunk` in its request. Raises `UnitRefused` (AUDIO_INVALID) that names the
    field at fault. 16-bit samples are divided by 32768; louder floats are clipped.
    """
    layout = _LAYOUTS.get(chunk.encoding)
    if layout is None:
        raise _refused(f"{field}.encoding", "must be PCM_F32LE or PCM_S16LE")
    if chunk.sample_rate_hz != sample_rate_hz:
        raise _refused(f"{field}.sample_rate_hz", f"must be {sample_rate_hz}, not {chunk.sample_rate_hz}")
    dtype, scale = np.dtype(layout[0]), layout[1]
    data = chunk.data  # a copy
    count, rest = divmod(len(data), dtype.itemsize)
    if rest or not count:
        raise _refused(
            f"{field}.data",
            f"must hold one or more samples of {dtype.itemsize} bytes; it has {len(data)} bytes",
        )
    if max_samples is not None and count > max_samples:
        raise _refused(f"{field}.data", f"must hold at most one unit, {max_samples} samples, not {count}")
    samples = np.frombuffer(data, dtype).astype(np.float32, copy=False)
    if scale != 1.0:
        return samples * np.float32(scale)
    # Both are NaN if a sample is. The methods `max` and `min` of arrays would call Python code.
    peak = max(float(np.maximum.reduce(samples)), -float(np.minimum.reduce(samples)))
    if not isfinite(peak):
        raise _refused(f"{field}.data", "must be finite; it holds NaN or infinity")
    if peak > PEAK_LIMIT:
        raise _refused(f"{field}.data", f"must be float PCM in [-1, 1]; its peak is {peak:.1f}")
    return samples if peak <= 1.0 else np.clip(samples, -1.0, 1.0)


def _refused(field: str, problem: str) -> UnitRefused:
    return UnitRefused(Reason.AUDIO_INVALID, f"{field} {problem}.", field)
