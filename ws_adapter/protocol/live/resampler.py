"""Resampling of a stream in pieces, with a state that another adapter can restore."""

import math
from typing import Final

import numpy as np
import soxr
from msgspec import Struct

from ws_adapter.protocol.wire.codec import NO_AUDIO, Samples

PAST_S: Final = 0.15
"""The seconds of the latest input that reproduce a resampler's state: more than twice its delay."""


class SavedResampler(Struct, frozen=True):
    """The state of a `Resampler`: its latest input, and the number of samples returned for it."""

    past: bytes
    """Float32 samples at the sample rate of the input."""
    returned: int


class Resampler:
    """A resampler of mono float32 from `from_hz` to `to_hz`; it delays a part of its input."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")
        divisor = math.gcd(from_hz, to_hz)
        self._step_in, self._step_out = from_hz // divisor, to_hz // divisor
        self._most_past = round(PAST_S * from_hz)
        self._past = NO_AUDIO.samples
        """The latest input, from a sample that coincides with one of the output."""
        self._returned = 0
        """The samples returned since the beginning of `_past`."""
        self._early = NO_AUDIO.samples
        """Output that is returned before any other."""
        self._late = 0
        """The number of output samples to skip, since another resampler has returned them."""

    def more(self, samples: Samples, *, last: bool = False) -> Samples:
        """Return the output that is available now; with `last`, all remaining output."""
        output: Samples = self._stream.resample_chunk(samples, last=last)
        if self._late:
            skipped = min(self._late, output.size)
            self._late -= skipped
            output = output[skipped:]
        if self._early.size:
            output, self._early = np.concatenate([self._early, output]), NO_AUDIO.samples
        self._returned += output.size
        self._past = np.concatenate([self._past, samples])
        if (steps := (self._past.size - self._most_past) // self._step_in) > 0:
            self._past = self._past[steps * self._step_in :]
            self._returned -= steps * self._step_out
        return output

    def clear(self) -> None:
        """Begin another stream."""
        self._stream.clear()
        self._past = self._early = NO_AUDIO.samples
        self._returned = self._late = 0

    def save(self) -> SavedResampler:
        """Return the state."""
        return SavedResampler(self._past.tobytes(), self._returned)

    def restore(self, saved: SavedResampler) -> None:
        """Go on from a saved state; called once, before anything else. Raises `ValueError`."""
        self._past = np.frombuffer(saved.past, np.float32)
        self._returned = saved.returned
        if self._past.size:
            output: Samples = self._stream.resample_chunk(self._past)
            self._early = output[max(0, saved.returned) :]
            self._late = max(0, saved.returned - output.size)
