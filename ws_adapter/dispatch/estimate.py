"""How long a ticket will have to wait."""

import heapq
from collections.abc import Sequence
from typing import Final

from ws_adapter.dispatch.base import Kind

BASE_S: Final[dict[Kind, float]] = {
    Kind.AUDIO_DUPLEX: 120.0,
    Kind.OMNI_DUPLEX: 90.0,
    Kind.CHAT: 15.0,
    Kind.TRANSCRIPTION: 30.0,
}
"""Expected length of a session until enough of its kind have been seen."""

SAMPLES_NEEDED: Final = 3
ALPHA: Final = 0.3
LEAST_REMAINING_S: Final = 5.0


class MovingMean:
    """Exponential mean of the lengths of one kind of session, in seconds."""

    def __init__(self, base: float) -> None:
        self._base = base
        self._mean = 0.0
        self._samples = 0

    def add(self, seconds: float) -> None:
        """A session took `seconds`."""
        self._mean = seconds if not self._samples else ALPHA * seconds + (1 - ALPHA) * self._mean
        self._samples += 1

    @property
    def seconds(self) -> float:
        """The expected length; the base value until three samples are in."""
        return self._mean if self._samples >= SAMPLES_NEEDED else self._base


def remaining(expected_s: float, elapsed_s: float, limit_s: float) -> float:
    """Seconds that a running session will still take; `limit_s` is the session limit, 0 for none."""
    left = max(expected_s - elapsed_s, LEAST_REMAINING_S)
    return min(left, max(0.0, limit_s - elapsed_s)) if limit_s else left


def estimate_waits(slots: Sequence[float], waiting: Sequence[float]) -> list[float]:
    """Seconds until each of `waiting` gets a slot, in queue order.

    `slots` are the remaining seconds of every slot, 0 for a free one, at least one; `waiting` are the
    expected lengths of the sessions that wait. Each takes the slot that is free first.
    """
    free_at = list(slots)
    heapq.heapify(free_at)
    return [heapq.heapreplace(free_at, free_at[0] + length) for length in waiting]
