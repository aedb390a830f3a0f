"""Resampling of a stream in pieces, with a state from which another adapter goes on."""

import math
from typing import Final

import numpy as np
import soxr
from msgspec import Struct

from ws_adapter.protocol.wire.codec import NO_AUDIO, Samples

PAST_S: Final = 0.15
"""Seconds of the latest input that bring a new resampler into the state of the last one: more than twice as
much as it holds back."""


class SavedResampler(Struct, frozen=True):
    """Hold the state of a `Resampler`: its latest input, and how many samples it has returned for that."""

    past: bytes
    """Float32 at the sample rate of the input."""
    returned: int


class Resampler:
    """A stream of mono float32 from `from_hz` to `to_hz`; it holds back a part of what it is given."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._stream = soxr.ResampleStream(from_hz, to_hz, 1, dtype="float32")
        divisor = math.gcd(from_hz, to_hz)
        self._step_in, self._step_out = from_hz // divisor, to_hz // divisor
        self._most_past = round(PAST_S * from_hz)
        self._past = NO_AUDIO.samples
        """The latest input; it begins at a sample that falls on one of the output."""
        self._returned = 0
        """Samples of output from the one on at which `_past` begins."""
        self._early = NO_AUDIO.samples
        """Output that is returned before any other."""
        self._late = 0
        """Samples of output that were returned by another resampler."""

    def more(self, samples: Samples, *, last: bool = False) -> Samples:
        """Return what can be resampled now, with `last` all that is left."""
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
