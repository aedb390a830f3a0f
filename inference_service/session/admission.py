"""Admission control: estimate from recent ticks and units whether one more session would be served
in time.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from inference_service.interface.engine import Ticked

WINDOW_S = 30.0
"""Length of the measured window, in seconds."""
LEAST_UNITS = 20
"""Units that must be answered within the window before admission control refuses a session."""
FREE_SHARE = 0.5
"""Busy share of the engine up to which every session is admitted: lateness below it has another cause."""
MOST_SHARE = 0.95
"""Busy share of the engine beyond which queues of units grow without end."""
_PERCENTILE = 99
_MOST_TICKS = 2**14
"""Ticks that may wait to be summed up: more than half a minute of them, unless ticks take no time."""
_ALIKE = 1.0
"""Variance of rows and speakers up to which ticks count as alike."""


@dataclass
class _Second:
    """Sums over the ticks of a second: of 1, of rows and speakers, of their products, and of products with
    seconds.

    Ticks that encode sound and ticks with speech in them are summed up separately.
    """

    at: int
    units_s: float
    moments: Sequence[list[float]]


class Admission:
    """Admits a session as long as it is not expected to make any session's units late.

    A tick takes a time of its own, and some for each row and each speaker in it. The last two are what one
    more session adds to the share of its time that the engine is busy; and the busier it is, the longer units
    wait. Nothing is guessed: without sessions or measurements every session is admitted.

    Everything here is called on the serving event loop.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, is_on: bool = True) -> None:
        """Create admission control; unless `is_on`, it only measures and admits every session."""
        self._clock = clock
        self._is_on = is_on
        self._ticks: deque[Ticked] = deque(maxlen=_MOST_TICKS)
        self._seconds: deque[_Second] = deque()
        self._used: deque[tuple[float, float]] = deque(maxlen=_MOST_TICKS)
        """The time at which each unit was answered, and the busy share that it took."""
        self.ticked: Callable[[Iterable[Ticked]], None] = self._ticks.extend
        """Note ticks of the engine. They are summed up on demand, so that units do not wait for the sums."""
        self.answered: Callable[[tuple[float, float]], None] = self._used.append
        """Note a unit that was done at a monotonic time, and the worker's time for it per second of its
        audio.
        """
        self._sessions = 0
        self._changes: deque[tuple[float, int]] = deque([(clock(), 0)])
        """The number of sessions at each change, with its time."""

    def enter(self) -> None:
        """Count a session with a slot."""
        self._change(1)

    def leave(self) -> None:
        """Count a session whose slot is clean again."""
        self._change(-1)

    def has_time(self) -> bool:
        """Return whether one more session may be admitted."""
        now, after = self.shares()
        if not self._is_on or not self._sessions or len(self._used) < LEAST_UNITS or after <= FREE_SHARE:
            return True
        if after >= MOST_SHARE:
            return False
        slowest = float(np.percentile([used for _, used in self._used], _PERCENTILE))
        return slowest * (1 - now) / (1 - after) < 1.0

    def shares(self) -> tuple[float, float]:
        """Return the busy share that the engine needs for the units of its sessions, and that with one
        session more.
        """
        self._look()
        now = self._clock()
        length = max(1.0, min(WINDOW_S, now - self._changes[0][0]))
        busy = sum(second.units_s for second in self._seconds) / length
        held, variable = self._session_seconds(now, length), self._variable_share()
        if not (held and busy):
            return busy, busy
        # Units that come faster than they are said could as well come later.
        busy, mean = busy * min(1.0, held / max(1, len(self._used))), held / length
        each = busy / mean * variable
        present = max(0.0, busy + each * (self._sessions - mean))
        return present, present + each

    def _variable_share(self) -> float:
        """Return the share of the ticks' time that grows with rows and speakers.

        The estimate compares ticks of one sort with different numbers of rows and speakers, since most of the
        cost of a speech step is fixed. It is 0 if all ticks were alike.
        """
        if not self._seconds:
            return 0.0
        sums = np.sum([second.moments for second in self._seconds], axis=0)
        n, r, s, rr, rs, ss, t, tr, ts = sums[sums[:, 0] > 0].T
        apart = np.array([[rr - r * r / n, rs - r * s / n], [rs - r * s / n, ss - s * s / n]]).sum(axis=2)
        beside = np.array([tr - r * t / n, ts - s * t / n]).sum(axis=1)
        row_s, speaker_s = np.linalg.solve(apart + _ALIKE * n.sum() * np.eye(2), beside)
        costs = max(0.0, row_s) * r.sum() + max(0.0, speaker_s) * s.sum()
        return float(min(1.0, costs / t.sum()))

    def _session_seconds(self, now: float, length: float) -> float:
        total, until = 0.0, now
        for since, sessions in reversed(self._changes):
            begin = max(since, now - length)
            total += max(0.0, until - begin) * sessions
            until = begin
        return total

    def _change(self, by: int) -> None:
        self._sessions += by
        self._changes.append((self._clock(), self._sessions))
        self._look()

    def _look(self) -> None:
        """Sum up the new ticks, and drop sums that are older than the window."""
        while self._ticks:
            tick = self._ticks.popleft()
            if not self._seconds or self._seconds[-1].at != int(tick.ended):
                nothing = ([0.0] * 9, [0.0] * 9, [0.0] * 9, [0.0] * 9)
                self._seconds.append(_Second(int(tick.ended), 0.0, nothing))
            second, spent = self._seconds[-1], tick.ended - tick.started
            second.units_s += spent - tick.rest_s
            rows, speakers = tick.tokens, tick.speaking
            moments = second.moments[2 * (rows > tick.sessions) + (speakers > 0)]
            for i, value in enumerate(
                (
                    *(1.0, rows, speakers, rows * rows, rows * speakers, speakers * speakers),
                    *(spent, rows * spent, speakers * spent),
                )
            ):
                moments[i] += value
        old = self._clock() - WINDOW_S
        while self._seconds and self._seconds[0].at < int(old):
            self._seconds.popleft()
        while self._used and self._used[0][0] < old:
            self._used.popleft()
        while len(self._changes) > 1 and self._changes[1][0] < old:
            self._changes.popleft()
