"""Simulated callers of workload W: each requests a session and then sends a unit every second."""

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from benchmarks.crowd.workload import CYCLE
from inference_service.engine.batch.scheduler import UNIT_S
from inference_service.session.base.session import Session

IN_FLIGHT: Final = 2
"""The largest number of units in flight per session; the adapter drops further ones."""


@dataclass
class Caller:
    """A caller, and the latencies of its units in the measured period."""

    phase: int
    """The position in the cycle of workload W at which it begins."""
    session: Session[Any] | None = None
    sent: dict[int, float] = field(default_factory=dict)
    """Arrival times of unanswered units, by their numbers."""
    number: int = 0
    """Number of the last unit that was sent."""
    in_flight: int = 0
    watched: set[int] = field(default_factory=set)
    """Numbers of the sent units in the measured period."""
    latencies: list[float] = field(default_factory=list)
    """Seconds from the arrival of a measured unit to the end of its answer."""
    dropped: int = 0
    """Measured units that were not sent: too many were in flight, or the session had not begun."""
    has_begun: bool = False

    @property
    def units(self) -> int:
        """The number of measured units."""
        return len(self.watched) + self.dropped

    @property
    def late(self) -> int:
        """The number of measured units with a late answer or none."""
        return self.units - sum(it <= UNIT_S for it in self.latencies)

    @property
    def mean_s(self) -> float:
        """The mean latency; infinite without an answer."""
        return sum(self.latencies) / len(self.latencies) if self.latencies else float("inf")


class EventQueue:
    """Future events, ordered by time."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()

    @property
    def next_at(self) -> float:
        """The time of the next event; infinite if there is none."""
        return self._events[0][0] if self._events else float("inf")

    def add(self, at: float, event: Callable[[float], None]) -> None:
        """Call `event` with the time `at` when that is reached."""
        heapq.heappush(self._events, (at, next(self._numbers), event))

    def run_until(self, now: float) -> None:
        """Call the events that are due until `now`."""
        while self.next_at <= now:
            at, _, event = heapq.heappop(self._events)
            event(at)


def callers(sessions: int, draw: random.Random) -> list[Caller]:
    """Return `sessions` callers with random phases."""
    return [Caller(draw.randrange(CYCLE)) for _ in range(sessions)]
