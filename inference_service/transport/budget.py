"""What a caller may make us do for nothing."""

from typing import Final

PER_S: Final = 500.0
FRAME: Final = 0.05
"""What a frame costs of one that the HTTP/2 library has to look at: headers, settings, a ping, a reset."""


class Budget:
    """So much at once, and `PER_S` in every second. An attack of many small frames is over soon.

    A session takes six at its beginning and end, and less than one in each of its units.
    """

    def __init__(self, most: float, now: float) -> None:
        self._most = self._left = most
        self._at = now

    def spend(self, amount: float, now: float) -> bool:
        """Whether there was as much left."""
        self._left = min(self._most, self._left + (now - self._at) * PER_S) - amount
        self._at = now
        return self._left >= 0
