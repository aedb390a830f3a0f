"""What a caller may make us do for nothing."""

from typing import Final

MOST: Final = 1000.0
PER_S: Final = 500.0
MOST_A_CALL: Final = 8.0
PER_S_A_CALL: Final = 1.0
"""More of both for each call that may be open."""

CONTROL: Final = 1.0
"""What a frame costs that the HTTP/2 library has to look at: headers, settings, a reset."""
BYTE: Final = 1 / 256
"""What each of its bytes costs: headers are unpacked and settings looked at one by one."""
FRAME: Final = 0.05
"""What any other frame costs. Some callers measure the line with pings all the time."""

TURN: Final = 50.0
"""After so much others have their turn: some 10 ms."""


class Budget:
    """So much at once, and so much in every second. An attack of many small frames is over soon.

    A session takes less than 20 at its beginning and end, and about one in each second of its units.
    """

    def __init__(self, most_calls: int, now: float) -> None:
        self._most = self._left = MOST + MOST_A_CALL * most_calls
        self._per_s = PER_S + PER_S_A_CALL * most_calls
        self._at = now

    def spend(self, amount: float, now: float) -> bool:
        """Whether there was as much left."""
        self._left = min(self._most, self._left + (now - self._at) * self._per_s) - amount
        self._at = now
        return self._left >= 0
