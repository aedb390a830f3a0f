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
"""Variance of rows and speakers up to which ticks count as alike: the ridge of the regression."""


@dataclass
class _Second:
    """Sums over the ticks of one second, from which a regression on rows and speakers is computed.

    A list of `moments` has the sums of 1, r, s, rr, rs, ss, t, rt and st: r rows, s sessions with a step of
    speech, t seconds. There are four lists: with and without encoding of sound, with and without speech.
    """

    at: int
    units_s: float
    moments: Sequence[list[float]]


class Admission:
    """Admission control: admits a session unless it is expected to make units of any session late.

    The time of a tick has a fixed part, and a part that grows with its rows and speakers. One more session
    adds to the second part, and so to the busy share of the engine. Units queue for longer as the busy share
    grows. Without sessions or measurements every session is admitted.

    All methods are called on the serving event loop.
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
        """Note a finished unit: its monotonic time, and the worker's time for it per second of its audio."""
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
        self._sum_up()
        now = self._clock()
        length = max(1.0, min(WINDOW_S, now - self._changes[0][0]))
        busy = sum(second.units_s for second in self._seconds) / length
        held, variable = self._session_seconds(now, length), self._variable_share()
        if not (held and busy):
            return busy, busy
        # Units that are sent faster than real time could wait: count one unit a second for each session.
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
        cov = np.array([[rr - r * r / n, rs - r * s / n], [rs - r * s / n, ss - s * s / n]]).sum(axis=2)
        cov_s = np.array([tr - r * t / n, ts - s * t / n]).sum(axis=1)
        row_s, speaker_s = np.linalg.solve(cov + _ALIKE * n.sum() * np.eye(2), cov_s)
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
        self._sum_up()

    def _sum_up(self) -> None:
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
