"""How long a ticket will have to wait."""

import heapq
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Final

from ws_adapter.protocol.core.kind import Kind

BASE_S: Final[dict[Kind, float]] = {
    Kind.AUDIO_DUPLEX: 120.0,
    Kind.OMNI_DUPLEX: 90.0,
    Kind.CHAT: 15.0,
    Kind.REALTIME: 180.0,
    Kind.TRANSCRIPTION: 30.0,
}
"""Length of a session of which nothing at all is known, and the most that is guessed."""

SAMPLES_NEEDED: Final = 3
ALPHA: Final = 0.3
LEAST_REMAINING_S: Final = 5.0


class Lengths:
    """How long sessions last, by kind, in seconds: learnt from those that are over.

    Until three of a kind are, it is a guess from these and from the running ones, each of which is taken to
    last as long again as it has so far.
    """

    def __init__(self) -> None:
        self._means: dict[Kind, float] = {}
        self._samples: Counter[Kind] = Counter()

    def add(self, kind: Kind, seconds: float) -> None:
        """A session took `seconds`: the mean is an exponential one."""
        mean = self._means.get(kind, seconds)
        self._means[kind] = ALPHA * seconds + (1 - ALPHA) * mean
        self._samples[kind] += 1

    def are_known(self, kind: Kind) -> bool:
        """Whether the figures of a kind are no guess."""
        return self._samples[kind] >= SAMPLES_NEEDED

    def expected(self, kind: Kind, running: Sequence[float]) -> float:
        """How long a session will take; `running` is how long each one of its kind has taken so far."""
        if kind in self._means:
            return self._means[kind]
        return _bounded(kind, 2 * fmean(running)) if running else BASE_S[kind]

    def remaining(self, kind: Kind, elapsed_s: float, limit_s: float) -> float:
        """How long a running session will still take; `limit_s` is the session limit, 0 for none."""
        left = max(self._means.get(kind, 0.0) - elapsed_s, LEAST_REMAINING_S)
        if not self.are_known(kind):
            left = max(left, _bounded(kind, elapsed_s))
        return min(left, max(0.0, limit_s - elapsed_s)) if limit_s else left


def _bounded(kind: Kind, seconds: float) -> float:
    return min(max(seconds, LEAST_REMAINING_S), BASE_S[kind])


def estimate_waits(slots: Sequence[float], waiting: Sequence[float]) -> list[float]:
    """Seconds until each of `waiting` gets a slot, in queue order.

    `slots` are the remaining seconds of every slot, 0 for a free one, at least one; `waiting` are the
    expected lengths of the sessions that wait. Each takes the slot that is free first.
    """
    free_at = list(slots)
    heapq.heapify(free_at)
    return [heapq.heapreplace(free_at, free_at[0] + length) for length in waiting]
