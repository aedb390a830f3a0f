"""Cuts the units of a session into the frames of the codec, whatever their length and rate."""

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from inference_service.interface.setups import UnitFormat
from inference_service.models.token2wav.features import resampling_filters

Pcm = NDArray[np.float32]


class Framing:
    """The frames of one stream of units. What is left of a unit begins the first frame of the next one.

    A second has 12.5 frames of 80 ms, so units of a second have 12 and 13 frames by turns.
    """

    def __init__(self, units: UnitFormat, samples: int, sample_rate_hz: int) -> None:
        """A frame has so many samples at the rate of the codec."""
        self._units = units
        self._samples = samples
        changes = units.sample_rate_hz != sample_rate_hz
        self._resampler = Resampler(units.sample_rate_hz, sample_rate_hz) if changes else None
        self._rest = np.zeros(0, np.float32)

    def feed(self, pcm: Pcm) -> list[Tensor]:
        """Return the frames, [samples] each, that the next unit completes; a short one is filled up."""
        pcm = np.pad(pcm, (0, max(0, self._units.samples - len(pcm))))
        if self._resampler is not None:
            pcm = self._resampler.feed(pcm)
        whole = np.concatenate([self._rest, pcm])
        end = len(whole) // self._samples * self._samples
        self._rest = whole[end:]
        return list(torch.from_numpy(whole[:end]).split(self._samples))


class Resampler:
    """One stream of sound at another rate, piece by piece; it comes late by half a filter."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        filters, self._old, reach = resampling_filters(from_hz, to_hz)
        self._filters = filters.numpy()
        self.late = -(-reach // self._old) * self._old
        """Samples at the old rate by which the sound comes late."""
        self._past = np.zeros(reach + self.late, np.float32)

    def feed(self, pcm: Pcm) -> Pcm:
        """Return the next piece, whose samples before the change are a multiple of `from_hz / gcd`."""
        whole = np.concatenate([self._past, pcm])
        self._past = whole[len(whole) - len(self._past) :]
        windows = sliding_window_view(whole, self._filters.shape[1])[:: self._old]
        made: Pcm = (windows[: len(pcm) // self._old] @ self._filters.T).astype(np.float32).reshape(-1)
        return made
