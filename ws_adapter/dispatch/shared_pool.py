"""One pool of the shared queue, as an adapter knows it."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, Final

from antiphon_service.redis import prefix
from ws_adapter.dispatch.base import QueuePlace
from ws_adapter.dispatch.estimate import EstimateInputs, Lengths, Session, Wait
from ws_adapter.dispatch.functions import LeaseStats, Stats, WorkerStats
from ws_adapter.dispatch.revisions import ALIKE, Weights
from ws_adapter.dispatch.ticket import QueuedTicket, SlotRequest
from ws_adapter.process.clock import Clock
from ws_adapter.protocol.core.kind import Kind

_MS: Final = 1000

_MOST_ESTIMATED: Final = 1000
"""The most waiting tickets that are estimated, which takes half a millisecond."""


class SharedTicket(QueuedTicket):
    """A ticket of this adapter in the shared queue."""

    asked: "SharedPool | None" = None
    """The pool in which a place was requested, whether or not there was an answer."""
    has_left: bool = False
    """Whether the ticket was given up."""
    pool: "SharedPool | None" = None
    """The pool of the ticket; None before it has one, and while no worker can serve it."""
    seq: int = 0
    """The sequence number of its arrival, 0 before it has one."""
    rank: int = 0
    """The position in the last answer of Redis."""
    unserved_at: float | None = None
    """The time since when no worker can serve the ticket."""

    def __init__(
        self, request: SlotRequest, clock: Clock, update_s: float, place: Callable[[Any], QueuePlace]
    ) -> None:
        super().__init__(request, clock, update_s, place)
        self._arrived = asyncio.Event()

    @property
    def has_arrived(self) -> bool:
        """Whether Redis has the ticket, or no worker is known to be able to serve it."""
        return self._arrived.is_set()

    def arrive(self) -> None:
        """Mark the ticket as arrived."""
        self._arrived.set()

    async def arrived(self) -> None:
        """Wait until the ticket has arrived. Raises the error that ended its wait before."""
        await self._arrived.wait()
        if self.error is not None:
            raise self.error


class SharedPool:
    """One pool: its tickets of this adapter, and the last statistics of Redis about all others."""

    def __init__(self, name: str, limits_s: Mapping[Kind, float]) -> None:
        self.name = name
        self.key = prefix(name)
        self.tickets: dict[str, SharedTicket] = {}
        """Tickets that Redis has, or had."""
        self.stats = Stats()
        self.unreported = 0
        """Tickets that entered since the last statistics."""
        self.no_worker_since: float | None = None
        """The time since when the pool has no worker."""
        self.inputs = EstimateInputs(0, (), Lengths(), limits_s)
        self.limits_s = limits_s
        """The session limit of each kind in seconds, 0 or no entry for no limit."""
        self.weights: Weights = ALIKE
        self._waits: list[Wait] | None = None

    @property
    def targets(self) -> set[str]:
        """The addresses of its workers."""
        return {worker.target for worker in self.stats.workers}

    @property
    def open_workers(self) -> list[WorkerStats]:
        """Return the workers whose revision gets sessions."""
        return [worker for worker in self.stats.workers if self.weights.take(worker.revision)]

    @property
    def free_slots(self) -> int:
        """The free slots that no ticket waits for."""
        return max(0, self.inputs.free_slots - self.stats.length - self.unreported)

    def learn(self, stats: Stats) -> None:
        """Take the statistics that Redis has of the pool."""
        self.stats, self.unreported = stats, 0
        means = {
            kind: (m.mean / _MS, m.samples) for name, m in stats.means.items() if (kind := kind_of(name))
        }
        leases = chain.from_iterable(worker.leases for worker in self.open_workers)
        sessions = [session_of(lease) for lease in leases]
        free = sum(worker.free for worker in self.open_workers if worker.accepting)
        self.inputs = EstimateInputs(free, sessions, Lengths(means), self.limits_s)
        self._waits = None

    def began(self, kind: Kind) -> None:
        """Count a session that got a slot since the last statistics."""
        free, running = self.inputs.free_slots, self.inputs.running
        self.inputs = self.inputs._replace(
            free_slots=max(0, free - 1), running=[*running, Session(kind, 0.0)]
        )
        self._waits = None

    def wait_of_next(self, kind: Kind) -> float:
        """Return the seconds that one more ticket would wait at the end of the queue."""
        return self.wait_at(self.stats.length + self.unreported + 1, kind).seconds

    def place(self, ticket: SharedTicket) -> QueuePlace:
        """Return the place of one of the pool's tickets."""
        wait = self.wait_at(max(ticket.rank, 1), ticket.request.kind, ticket.request.max_wait_s)
        position = ticket.move_to(max(ticket.rank, 1))
        return QueuePlace(ticket.id, position, max(self.stats.length, position), wait.seconds, wait.is_guess)

    def wait_at(self, rank: int, kind: Kind, longest_s: float = 0.0) -> Wait:
        """Return the wait of a ticket at this position, `longest_s` while the pool has no slot.

        Beyond `_MOST_ESTIMATED` positions the wait is extrapolated in proportion to the position.
        """
        near = min(rank, _MOST_ESTIMATED)
        if self._waits is None or len(self._waits) < near:
            self._waits = self.inputs.waits(self._kinds(near, kind))
        if not self._waits:
            return Wait(longest_s, True)
        wait = self._waits[near - 1]
        return Wait(wait.seconds * rank / near, wait.is_guess)

    def _kinds(self, least: int, kind: Kind) -> list[Kind]:
        """Return the kinds of at least `least` waiting tickets; other adapters' tickets are known by
        number alone."""
        own = {ticket.rank: ticket.request.kind for ticket in self.tickets.values() if ticket.rank}
        counts = Counter({k: count for name, count in self.stats.waiting.items() if (k := kind_of(name))})
        counts.subtract(own.values())
        others = counts.elements()
        length = min(max(least, self.stats.length), _MOST_ESTIMATED)
        return [own[rank] if rank in own else next(others, kind) for rank in range(1, length + 1)]


def session_of(lease: LeaseStats) -> Session:
    """Return the session that holds a slot."""
    return Session(kind_of(lease.kind), lease.age / _MS)


def kind_of(name: str) -> Kind | None:
    """Return the kind that another adapter wrote down, None if it is unknown here."""
    with suppress(ValueError):
        return Kind(name)
    return None
