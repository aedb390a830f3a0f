"""Conversion of a session's units, of any length and sample rate, to the codec's frames."""

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from inference_service.interface.setups import UnitFormat
from inference_service.models.token2wav.features import resampling_filters

Pcm = NDArray[np.float32]


class Framing:
    """The frames of one stream of units. The rest of a unit begins the first frame of the next one.

    A second has 12.5 frames of 80 ms, so units of a second have alternately 12 and 13 frames.
    """

    def __init__(self, units: UnitFormat, samples: int, sample_rate_hz: int) -> None:
        """Create the framing; a frame has `samples` samples at the codec's rate."""
        self._units = units
        self._samples = samples
        changes = units.sample_rate_hz != sample_rate_hz
        self._resampler = Resampler(units.sample_rate_hz, sample_rate_hz) if changes else None
        self._rest = np.zeros(0, np.float32)

    def feed(self, pcm: Pcm) -> list[Tensor]:
        """Return the frames, [samples] each, that the next unit completes; a short unit is padded."""
        pcm = np.pad(pcm, (0, max(0, self._units.samples - len(pcm))))
        if self._resampler is not None:
            pcm = self._resampler.feed(pcm)
        whole = np.concatenate([self._rest, pcm])
        end = len(whole) // self._samples * self._samples
        self._rest = whole[end:]
        return list(torch.from_numpy(whole[:end]).split(self._samples))


class Resampler:
    """Resamples one stream of sound piece by piece, with a delay of half a filter."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        filters, self._old, reach = resampling_filters(from_hz, to_hz)
        self._filters = filters.numpy()
        self.late = -(-reach // self._old) * self._old
        """The delay in samples at the old rate."""
        self._past = np.zeros(reach + self.late, np.float32)

    def feed(self, pcm: Pcm) -> Pcm:
        """Return the next piece; the input's length must be a multiple of `from_hz / gcd`."""
        whole = np.concatenate([self._past, pcm])
        self._past = whole[len(whole) - len(self._past) :]
        windows = sliding_window_view(whole, self._filters.shape[1])[:: self._old]
        made: Pcm = (windows[: len(pcm) // self._old] @ self._filters.T).astype(np.float32).reshape(-1)
        return made
