"""What callers may make us do for nothing."""

from typing import Final

MOST: Final = 1000.0
PER_S: Final = 500.0
MOST_A_CALL: Final = 8.0
PER_S_A_CALL: Final = 1.0
"""More of both for each call that may be open."""

ARRIVAL: Final = 5.0
"""What a connection costs, and the search for one that makes room for it."""
HANDSHAKE: Final = 15.0
"""What it costs more with TLS: 0.3 to 1.5 ms, the latter where both sides show an RSA certificate."""
CONTROL: Final = 1.0
"""What a frame costs that the HTTP/2 library has to look at: headers, settings, a reset."""
BYTE: Final = 1 / 256
"""What each of its bytes costs: headers are unpacked and settings looked at one by one."""
FRAME: Final = 0.05
"""What any other frame costs. Some callers measure the line with pings all the time."""
CRUMB: Final = 1024
"""If fewer bytes of a frame come alone they cost as much as one. Packets of a slow line have more."""

TURN: Final = 50.0
"""After so much others have their turn: some 10 ms."""


class Budget:
    """So much at once, and so much in every second: of all connections of an address together.

    An attack of many small frames is over soon, on however many connections it comes. A session takes less
    than 20 at its beginning and end, and about one in each second of its units; once it takes units, its
    caller has back what its calls took.
    """

    def __init__(self, most_calls: int, now: float) -> None:
        self._most = self._left = MOST + MOST_A_CALL * most_calls
        self._per_s = PER_S + PER_S_A_CALL * most_calls
        self._at = now

    def spend(self, amount: float, now: float) -> bool:
        """Whether there was as much left; if not, nothing is taken."""
        self._left = min(self._most, self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < amount:
            return False
        self._left -= amount
        return True

    def repay(self, amount: float) -> None:
        """What was spent was for something."""
        self._left = min(self._most, self._left + amount)


class Reserve:
    """What a connection may spend when others of its address have left it nothing: as much as its calls need.

    One that only stands has the share of one call. So who has sessions can keep them, and who has none can
    at most double with all connections there are what the address may spend.
    """

    def __init__(self, now: float) -> None:
        self._left = 0.0
        self._at = now

    def spend(self, amount: float, now: float, calls: int) -> bool:
        """Whether `calls` have saved as much; if not, nothing is taken."""
        shares = 1 + calls
        self._left = min(MOST_A_CALL * shares, self._left + (now - self._at) * PER_S_A_CALL * shares)
        self._at = now
        if self._left < amount:
            return False
        self._left -= amount
        return True
