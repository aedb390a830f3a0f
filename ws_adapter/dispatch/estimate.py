"""Estimated waits of tickets."""

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Final, NamedTuple

from ws_adapter.protocol.core.kind import Kind

BASE_S: Final[dict[Kind, float]] = {
    Kind.AUDIO_DUPLEX: 120.0,
    Kind.OMNI_DUPLEX: 90.0,
    Kind.CHAT: 15.0,
    Kind.REALTIME: 180.0,
    Kind.TRANSCRIPTION: 30.0,
}
"""The length in seconds of a session of a kind without samples, and the upper bound of guesses."""

SAMPLES_NEEDED: Final = 3
ALPHA: Final = 0.3
LEAST_REMAINING_S: Final = 5.0


class Lengths:
    """Lengths of sessions by kind, in seconds, learnt from finished sessions.

    With fewer than three samples of a kind, the length is a guess from these and from the running sessions.
    Each running session is assumed to last twice its present age.
    """

    def __init__(self, known: Mapping[Kind, tuple[float, int]] | None = None) -> None:
        """`known` are means in seconds and sample counts that another adapter has learnt."""
        known = known or {}
        self._means = {kind: mean for kind, (mean, _) in known.items()}
        self._samples = Counter({kind: samples for kind, (_, samples) in known.items()})

    def add(self, kind: Kind, seconds: float) -> None:
        """Add a session of `seconds` to the exponential mean of its kind."""
        mean = self._means.get(kind, seconds)
        self._means[kind] = ALPHA * seconds + (1 - ALPHA) * mean
        self._samples[kind] += 1

    def are_known(self, kind: Kind) -> bool:
        """Return whether a kind has enough samples."""
        return self._samples[kind] >= SAMPLES_NEEDED

    def expected(self, kind: Kind, running: Sequence[float]) -> float:
        """Return the expected seconds of a session; `running` are the ages in seconds of the
        running sessions of its kind."""
        if kind in self._means:
            return self._means[kind]
        return _bounded(kind, 2 * fmean(running)) if running else BASE_S[kind]

    def remaining(self, kind: Kind, elapsed_s: float, limit_s: float) -> float:
        """Return the remaining seconds of a running session; `limit_s` is the session limit, 0 for none."""
        left = max(self._means.get(kind, 0.0) - elapsed_s, LEAST_REMAINING_S)
        if not self.are_known(kind):
            left = max(left, _bounded(kind, elapsed_s))
        return min(left, max(0.0, limit_s - elapsed_s)) if limit_s else left


def _bounded(kind: Kind, seconds: float) -> float:
    return min(max(seconds, LEAST_REMAINING_S), BASE_S[kind])


class Session(NamedTuple):
    """A running session, and its age in seconds; `kind` is None if unknown."""

    kind: Kind | None
    elapsed_s: float


class Wait(NamedTuple):
    """An estimated wait, and whether it rests on a kind with too few samples."""

    seconds: float
    is_guess: bool


class EstimateInputs(NamedTuple):
    """The inputs of a pool's estimates. `limits_s` are the session limits of the kinds in seconds, 0 or no
    entry for none."""

    free_slots: int
    running: Sequence[Session]
    lengths: Lengths
    limits_s: Mapping[Kind, float]

    def waits(self, waiting: Iterable[Kind]) -> list[Wait]:
        """Estimate the waits of the waiting sessions, in their order; empty if there is no slot at all."""
        slots = [0.0] * self.free_slots + [self.remaining(session) for session in self.running]
        if not slots:
            return []
        kinds = list(waiting)
        seconds = estimate_waits(slots, self._expected(kinds))
        is_guess = not all(self.is_known(session) for session in self.running)
        waits = []
        for kind, wait in zip(kinds, seconds, strict=True):
            waits.append(Wait(wait, is_guess))
            is_guess = is_guess or not self.lengths.are_known(kind)
        return waits

    def remaining(self, session: Session) -> float:
        """Return how many seconds a session will keep its slot."""
        if session.kind is None:
            return max(session.elapsed_s, LEAST_REMAINING_S)
        limit_s = self.limits_s.get(session.kind, 0.0)
        return self.lengths.remaining(session.kind, session.elapsed_s, limit_s)

    def is_known(self, session: Session) -> bool:
        """Return whether the estimate of the session rests on enough samples."""
        return session.kind is not None and self.lengths.are_known(session.kind)

    def _expected(self, kinds: Sequence[Kind]) -> list[float]:
        running = {
            kind: [session.elapsed_s for session in self.running if session.kind is kind]
            for kind in set(kinds)
        }
        expected = {kind: self.lengths.expected(kind, elapsed) for kind, elapsed in running.items()}
        return [expected[kind] for kind in kinds]


def estimate_waits(slots: Sequence[float], waiting: Sequence[float]) -> list[float]:
    """Estimate the seconds until each of `waiting` gets a slot, in queue order.

    `slots` are the remaining seconds of every slot, 0 for a free one, at least one; `waiting` are the
    expected lengths of the sessions that wait. Each takes the slot that is free first.
    """
    free_at = list(slots)
    heapq.heapify(free_at)
    return [heapq.heapreplace(free_at, free_at[0] + length) for length in waiting]
