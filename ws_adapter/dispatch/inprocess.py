"""The dispatcher of a single adapter: one queue in memory in front of the slots of its workers.

A worker's slots are those of its GetInfo less the leases given out here. A slot is given back when the block
of `acquire` is left, which callers do only after the worker has ended all three calls of the session, that is
after it has cleaned up.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from antiphon.semconv import Reason
from ws_adapter.clock import Clock, Timer
from ws_adapter.dispatch.base import Kind, Lease, PoolStatus, QueuePlace
from ws_adapter.dispatch.estimate import BASE_S, MovingMean, estimate_waits, remaining
from ws_adapter.errors import AttachFailed, DispatchError, DispatcherUnavailable, QueueFull, WaitExpired
from ws_adapter.fleet import Fleet

_ESTIMATE_AGE_S: Final = 1.0

_SUSPICIOUS: Final = frozenset({Reason.WORKER_LOST, Reason.ATTACH_TIMEOUT, Reason.LOADING, Reason.DRAINING})
"""After these a worker gets no session until it has answered again."""


@dataclass(frozen=True)
class QueueRules:
    """Times in seconds; `session_limit_s` caps the estimates, 0 for no limit."""

    capacity: int = 1000
    update_s: float = 3.0
    no_worker_grace_s: float = 10.0
    session_limit_s: float = 600.0


class _Ticket:
    """A caller. Settled by a lease or by an error, whichever comes first."""

    def __init__(self, kind: Kind, max_wait: float, owner: "InProcessDispatcher") -> None:
        self.id = f"ticket_{secrets.token_hex(6)}"
        self.kind = kind
        self.max_wait = max_wait
        self.lease: Lease | None = None
        self.granted_at = 0.0
        self._owner = owner
        self._error: DispatchError | None = None
        self._news = asyncio.Event()

    def grant(self, lease: Lease, now: float) -> None:
        self.lease, self.granted_at = lease, now
        self._news.set()

    def fail(self, error: DispatchError) -> None:
        self._error = error
        self._news.set()

    async def updates(self) -> AsyncIterator[QueuePlace | Lease]:
        clock, update_s = self._owner.clock, self._owner.rules.update_s
        due = clock.now()
        while self.lease is None and self._error is None:
            yield self._owner.place(self)
            due += update_s
            timer = clock.call_at(due, self._news.set)
            try:
                await self._news.wait()
            finally:
                timer.cancel()
            self._news.clear()
        if self._error is not None:
            raise self._error
        assert self.lease is not None
        yield self.lease


class InProcessDispatcher:
    """See `Dispatcher`. There is one pool, so `pool` makes no difference."""

    def __init__(self, fleet: Fleet, clock: Clock, rules: QueueRules) -> None:
        self.clock = clock
        self.rules = rules
        self._fleet = fleet
        self._waiting: deque[_Ticket] = deque()
        self._held: dict[tuple[str, int], _Ticket] = {}
        self._epoch = 0
        self._means = {kind: MovingMean(base) for kind, base in BASE_S.items()}
        self._places: dict[str, QueuePlace] = {}
        self._placed_at = 0.0
        self._deserted: Timer | None = None
        self._is_deserted = False
        fleet.changed = self._fleet_changed
        self._fleet_changed()

    @asynccontextmanager
    async def acquire(
        self, pool: str, kind: Kind, max_wait: float, *, again: bool = False
    ) -> AsyncIterator[_Ticket]:
        """See `Dispatcher.acquire`."""
        ticket = _Ticket(kind, max_wait, self)
        self._enter(ticket, again)
        expiry = self._at(max_wait, lambda: self._expire(ticket)) if max_wait else None
        was_used = False
        try:
            yield ticket
            was_used = True
        except AttachFailed as error:
            if ticket.lease is not None and error.reason in _SUSPICIOUS:
                self._fleet.suspect(ticket.lease.target)
            raise
        finally:
            if expiry is not None:
                expiry.cancel()
            self._leave(ticket, was_used)

    async def status(self, pool: str) -> PoolStatus:
        """See `Dispatcher.status`."""
        ready = self._fleet.ready()
        slots = sum(info.slots for _, info in ready)
        free = sum(len(self._free_slots(info.worker_id, info.slots)) for _, info in ready)
        return PoolStatus(len(ready), slots, free, len(self._waiting))

    def is_contended(self, pool: str) -> bool:
        """See `Dispatcher.is_contended`."""
        return bool(self._waiting)

    def close(self) -> None:
        """Leaves no timer behind."""
        if self._deserted is not None:
            self._deserted.cancel()

    def place(self, ticket: _Ticket) -> QueuePlace:
        """Where a waiting ticket stands. Estimates are made for the whole queue, once a second."""
        if ticket.id not in self._places or self.clock.now() - self._placed_at >= _ESTIMATE_AGE_S:
            self._estimate()
        return self._places[ticket.id]

    # ------------------------------------------------------------------------------------- the queue

    def _enter(self, ticket: _Ticket, again: bool) -> None:
        if self._is_deserted:
            raise DispatcherUnavailable("no worker is ready")
        if again:
            self._waiting.appendleft(ticket)
        else:
            self._waiting.append(ticket)
        self._pump()
        if len(self._waiting) > self.rules.capacity and not again and ticket.lease is None:
            self._remove(ticket)
            raise QueueFull(f"{self.rules.capacity} sessions wait already")

    def _leave(self, ticket: _Ticket, was_used: bool) -> None:
        if ticket.lease is None:
            self._remove(ticket)
            return
        del self._held[ticket.lease.worker_id, ticket.lease.slot]
        if was_used:
            self._means[ticket.kind].add(self.clock.now() - ticket.granted_at)
        self._pump()

    def _remove(self, ticket: _Ticket) -> None:
        if ticket in self._waiting:
            self._waiting.remove(ticket)
            self._places.clear()

    def _expire(self, ticket: _Ticket) -> None:
        if ticket.lease is None:
            self._remove(ticket)
            ticket.fail(WaitExpired("the longest wait is over"))

    def _pump(self) -> None:
        """Gives free slots to the oldest tickets, each time one of the worker with the most free ones."""
        while self._waiting:
            offers = [
                (len(free), target, info.worker_id, free[0])
                for target, info in self._fleet.ready()
                if (free := self._free_slots(info.worker_id, info.slots))
            ]
            if not offers:
                break
            _, target, worker_id, slot = max(offers, key=lambda offer: offer[0])
            self._epoch += 1
            lease = Lease(target, f"{slot}:{self._epoch}:", worker_id, slot, self._epoch)
            ticket = self._waiting.popleft()
            self._held[worker_id, slot] = ticket
            ticket.grant(lease, self.clock.now())
        self._places.clear()

    def _free_slots(self, worker_id: str, slots: int) -> list[int]:
        return [slot for slot in range(slots) if (worker_id, slot) not in self._held]

    # ----------------------------------------------------------------------------------- the workers

    def _fleet_changed(self) -> None:
        if self._fleet.ready():
            self._is_deserted = False
            if self._deserted is not None:
                self._deserted.cancel()
                self._deserted = None
        elif self._deserted is None:
            self._deserted = self._at(self.rules.no_worker_grace_s, self._give_up)
        self._pump()

    def _give_up(self) -> None:
        self._is_deserted = True
        while self._waiting:
            self._waiting.popleft().fail(DispatcherUnavailable("no worker is ready"))

    def _at(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self.clock.call_at(self.clock.now() + seconds, callback)

    # ---------------------------------------------------------------------------------- the estimate

    def _estimate(self) -> None:
        now, limit = self.clock.now(), self.rules.session_limit_s
        ready = self._fleet.ready()
        at_ready = {info.worker_id for _, info in ready}
        slots = [
            remaining(self._means[holder.kind].seconds, now - holder.granted_at, limit)
            for (worker_id, _), holder in self._held.items()
            if worker_id in at_ready
        ]
        for _, info in ready:
            slots += [0.0] * len(self._free_slots(info.worker_id, info.slots))
        lengths = [self._means[ticket.kind].seconds for ticket in self._waiting]
        waits = estimate_waits(slots, lengths) if slots else [ticket.max_wait for ticket in self._waiting]
        self._places = {
            ticket.id: QueuePlace(ticket.id, position, len(lengths), wait)
            for position, (ticket, wait) in enumerate(zip(self._waiting, waits, strict=True), 1)
        }
        self._placed_at = now
