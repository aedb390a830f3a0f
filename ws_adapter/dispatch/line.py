"""The queue order of one pool in memory: its tickets and their reported positions."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Final, Generic, TypeVar

from ws_adapter.dispatch.base import HEAD_START, QueuePlace
from ws_adapter.dispatch.estimate import EstimateInputs, Lengths, Session, Wait
from ws_adapter.dispatch.revisions import WeightedRoundRobin
from ws_adapter.dispatch.ticket import QueuedTicket
from ws_adapter.process.clock import Clock
from ws_adapter.protocol.core.kind import Kind

_ESTIMATE_AGE_S: Final = 1.0
_HEAD: Final = 2**52
"""The advantage in arrivals of a ticket at the head of the queue."""

T = TypeVar("T", bound=QueuedTicket)


class Line(Generic[T]):
    """The tickets that wait for a slot of the pool `name`, and the known lengths of its sessions."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.waiting: deque[T] = deque()
        self.lengths = Lengths()
        self.round_robin = WeightedRoundRobin()
        self._clock = clock
        self._arrivals = 0
        self._places: dict[str, QueuePlace] = {}
        self._placed_at = 0.0

    def add(self, ticket: T) -> None:
        """Add a ticket at the place of its arrival and its priority (see `HEAD_START`).

        A ticket that lost a worker of this pool goes to the head, behind earlier such tickets.
        """
        self._arrivals += 1
        ahead = _HEAD if ticket.request.again == self.name else HEAD_START * ticket.request.priority
        ticket.order = self._arrivals - ahead
        behind = sum(1 for _ in takewhile(lambda other: other.order > ticket.order, reversed(self.waiting)))
        self.waiting.insert(len(self.waiting) - behind, ticket)
        self.invalidate()

    def next(self) -> T:
        """Remove and return the first ticket."""
        return self.waiting.popleft()

    def remove(self, ticket: T) -> None:
        """Remove a ticket, if it is there."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)
            self.invalidate()

    def invalidate(self) -> None:
        """Invalidate cached queue positions."""
        self._places.clear()

    def inputs(
        self, free_slots: int, running: Sequence[Session], limits_s: Mapping[Kind, float]
    ) -> EstimateInputs:
        """Return the inputs of the wait estimates."""
        return EstimateInputs(free_slots, running, self.lengths, limits_s)

    def place(self, ticket: T, inputs: Callable[[], EstimateInputs]) -> QueuePlace:
        """Return the place of a waiting ticket. Estimates are made for the whole queue, once a second."""
        if ticket.id not in self._places or self._clock.now() - self._placed_at >= _ESTIMATE_AGE_S:
            self._estimate(inputs())
        return self._places[ticket.id]

    def _estimate(self, inputs: EstimateInputs) -> None:
        waits = inputs.waits(ticket.request.kind for ticket in self.waiting)
        # Without any slot, the longest wait of the caller is the only estimate.
        waits = waits or [Wait(ticket.request.max_wait_s, True) for ticket in self.waiting]
        self._places = {
            ticket.id: QueuePlace(
                ticket.id, ticket.move_to(position), len(waits), wait.seconds, wait.is_guess
            )
            for position, (ticket, wait) in enumerate(zip(self.waiting, waits, strict=True), 1)
        }
        self._placed_at = self._clock.now()
