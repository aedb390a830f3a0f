"""The backoff between starts of a process that ends again and again."""

import random
from typing import Final

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S: Final = 30.0

STEADY_S: Final = 60.0
"""The seconds of running after which the next pause is the first again: the process started well."""

_LEAST_SHARE: Final = 0.75
"""The smallest share of a pause; it spreads the restarts of processes that died together."""


class Backoff:
    """Pauses that double from the first to the longest, less up to a quarter drawn from `rng`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._pause_s = FIRST_PAUSE_S

    def after(self, ran_s: float) -> float:
        """Return the pause in seconds of a process that was ready for `ran_s`; 0 if it never was."""
        pause_s = FIRST_PAUSE_S if ran_s >= STEADY_S else self._pause_s
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return pause_s * self._rng.uniform(_LEAST_SHARE, 1.0)
