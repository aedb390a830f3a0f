"""A crowd of callers of workload W that request a session and then send a unit every second."""

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
"""The largest number of a session's units in flight; the adapter drops further ones."""


@dataclass
class Caller:
    """A caller, and the latencies of its units while the crowd was watched."""

    phase: int
    """Units into the cycle of workload W at which it begins."""
    session: Session[Any] | None = None
    sent: dict[int, float] = field(default_factory=dict)
    """Arrivals of units that are not answered, by their numbers."""
    number: int = 0
    """Number of the last unit that was sent."""
    in_flight: int = 0
    watched: set[int] = field(default_factory=set)
    """Numbers of the units that count."""
    latencies: list[float] = field(default_factory=list)
    """Seconds from the arrival of a unit that counts to its last word."""
    dropped: int = 0
    """Units that count and were never sent: too many were in flight, or the session had not begun."""
    has_begun: bool = False

    @property
    def units(self) -> int:
        """Units that count."""
        return len(self.watched) + self.dropped

    @property
    def late(self) -> int:
        """Units that count and were answered late or not at all."""
        return self.units - sum(it <= UNIT_S for it in self.latencies)

    @property
    def mean_s(self) -> float:
        """Mean of its latencies."""
        return sum(self.latencies) / len(self.latencies) if self.latencies else float("inf")


class Agenda:
    """Queue events by their time."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()

    @property
    def next_at(self) -> float:
        """The time of the next event; infinite if there is none."""
        return self._events[0][0] if self._events else float("inf")

    def add(self, at: float, event: Callable[[float], None]) -> None:
        """Have something happen; `event` is called with its time."""
        heapq.heappush(self._events, (at, next(self._numbers), event))

    def run_until(self, now: float) -> None:
        """Let everything happen that is due."""
        while self.next_at <= now:
            at, _, event = heapq.heappop(self._events)
            event(at)


def callers(sessions: int, draw: random.Random) -> list[Caller]:
    """Return so many callers, whose phases are random."""
    return [Caller(draw.randrange(CYCLE)) for _ in range(sessions)]
