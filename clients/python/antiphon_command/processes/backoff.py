"""Exponential backoff between restarts of a process."""

import random
from typing import Final

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S: Final = 30.0

STEADY_S: Final = 60.0
"""The seconds of readiness after which a process counts as stable; then the pauses start over."""

_LEAST_SHARE: Final = 0.75
"""The smallest random share of a pause; it spreads the restarts of processes that died together."""


class Backoff:
    """Pauses that double from the first to the longest, each shortened by up to a quarter at random."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._pause_s = FIRST_PAUSE_S

    def after(self, ran_s: float) -> float:
        """Return the pause in seconds before the restart of a process that was ready for `ran_s` seconds."""
        pause_s = FIRST_PAUSE_S if ran_s >= STEADY_S else self._pause_s
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s * self._rng.uniform(_LEAST_SHARE, 1.0)
