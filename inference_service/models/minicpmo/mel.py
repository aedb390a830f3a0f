"""Log-mel of MiniCPM-o's ear: frames of 10 ms at 16 kHz, normalised by the recent maximum.

The published code recomputes up to 30 s of sound for every unit. Here only a unit's new frames are computed,
and only the loudest band of earlier ones is kept. The result is the same, and the cost of a unit does not
grow with the stream.
"""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import WhisperFeatureExtractor

RATE_HZ = 16_000
HOP = 160
FRAMES = 100
"""Frames of one unit."""
OVERLAP = 2
"""Frames that a unit shares with each neighbour."""
LONGEST = 30 * RATE_HZ
"""Samples over which a clip is normalised, and after which a stream drops its oldest ones."""
SHORTEST = RATE_HZ // 10
"""Samples to which a shorter clip is padded with silence, so that it has an embedding."""

_FFT = 400
_FIRST_PADDING = 560
"""Zeros before a stream: 35 ms."""
_LAG = 80
"""Samples that always wait for the next unit."""
_LOUDNESS_FROM = 5 * RATE_HZ
"""Samples from which sound is normalised by its maximum; shorter sound has a fixed floor."""
_FORGOTTEN = 10 * RATE_HZ
"""The oldest samples, which a stream of 30 s drops at once."""
_SILENCE = -10.0
"""log10 of the least power above silence."""

Array = NDArray[np.float32]


@cache
def _filters(bands: int) -> Tensor:
    """Return Slaney's mel filters as in Whisper, [bands, 201]."""
    extractor = WhisperFeatureExtractor(feature_size=bands)
    return torch.from_numpy(np.asarray(extractor.mel_filters, np.float32)).T


def log10_mel(pcm: Array, bands: int, first: int = 0) -> Tensor:
    """Return log10 of the power in mel bands, frames from `first` on: [bands, len(pcm) // 160 - first].

    Frame t is centred on sample 160 t; beyond its ends the sound is mirrored.
    """
    begin = HOP * first - _FFT // 2
    seen = np.pad(pcm[max(0, begin) :], (max(0, -begin), _FFT // 2), mode="reflect")
    spectrum = torch.stft(
        torch.from_numpy(seen), _FFT, HOP, window=torch.hann_window(_FFT), center=False, return_complex=True
    )
    power = spectrum[:, : len(pcm) // HOP - first].abs() ** 2
    return (_filters(bands) @ power).clamp(min=10**_SILENCE).log10()


def normalised(mel: Tensor, loudest: float | None) -> Tensor:
    """Return log-mel in Whisper's range: at most 80 dB under `loudest`; None sets no limit beyond
    `log10_mel`'s.
    """
    return ((mel if loudest is None else mel.clamp(min=loudest - 8.0)) + 4.0) / 4.0


class StreamingMel:
    """The log-mel of one stream of sound, second by second; keeps at most 30 s of it."""

    is_quick = False
    """Whether `feed` is short enough to run without a thread; it takes more than a millisecond."""

    def __init__(self, bands: int = 80) -> None:
        self._bands = bands
        self._pcm = np.zeros(_FIRST_PADDING, np.float32)
        self._loudest = np.zeros(0, np.float32)
        """The loudest band of each frame that `_pcm` holds."""

    @property
    def nbytes(self) -> int:
        """Memory of the state."""
        return self._pcm.nbytes + self._loudest.nbytes

    @property
    def is_dynamic(self) -> bool:
        """Whether the last unit was normalised by its loudest frame: from the fifth second on."""
        return len(self._pcm) - _LAG >= _LOUDNESS_FROM

    def feed(self, second: Array) -> Array:
        """Return log-mel [bands, 104] of the next second, float32 [16000], with two frames of each neighbour.

        The first unit has no left neighbour, so its log-mel is [bands, 102].
        """
        if second.shape != (RATE_HZ,):
            raise ValueError(f"A unit has {RATE_HZ} samples, not {list(second.shape)}.")
        self._pcm = np.concatenate([self._pcm, second.astype(np.float32, copy=False)])
        heard = self._pcm[:-_LAG]
        settled = (len(heard) - _FFT // 2) // HOP + 1  # the frame after these is mirrored at the end
        first = max(0, settled - FRAMES - 2 * OVERLAP)
        mel = log10_mel(heard, self._bands, first)
        # Samples that are not finite affect only the log-mel of their own unit.
        np.nan_to_num(self._pcm, copy=False, posinf=0.0, neginf=0.0)
        self._loudest = np.concatenate(
            [self._loudest[:first], mel.nan_to_num(_SILENCE, _SILENCE).amax(dim=0).numpy()]
        )
        loudest = float(self._loudest.max()) if self.is_dynamic else None
        unit = normalised(mel[:, : settled - first], loudest)
        if len(heard) >= LONGEST:
            self._forget()
        return np.ascontiguousarray(unit.numpy())

    def _forget(self) -> None:
        self._pcm = self._pcm[_FORGOTTEN:].copy()
        self._loudest = self._loudest[_FORGOTTEN // HOP :].copy()
        mirrored = -(-_FFT // 2 // HOP)  # frames that reach over the new beginning
        edge = log10_mel(self._pcm[: _FFT * mirrored], self._bands)[:, :mirrored]
        self._loudest[:mirrored] = edge.amax(dim=0).numpy()


def clip_mels(pcm: Array, bands: int = 80) -> list[Array]:
    """Return log-mels [bands, frames] of a whole clip, float32 [samples], one for each 30 s of it.

    Each is padded with silence to 30 s and normalised by its maximum; at least 100 ms are kept.
    """
    if pcm.ndim != 1 or not len(pcm):
        raise ValueError(f"A clip has one dimension and at least one sample, not {list(pcm.shape)}.")
    return [_clip_mel(pcm[begin : begin + LONGEST], bands) for begin in range(0, len(pcm), LONGEST)]


def _clip_mel(pcm: Array, bands: int) -> Array:
    padded = np.zeros(LONGEST, np.float32)
    padded[: len(pcm)] = pcm
    mel = log10_mel(padded, bands)
    frames = -(-max(len(pcm), SHORTEST) // HOP)
    return np.ascontiguousarray(normalised(mel, float(mel.max()))[:, :frames].numpy())
