"""The dispatcher of a single adapter: one queue in memory in front of the slots of its workers.

A worker's slots are those of its GetInfo less the leases given out here; one that refuses a lease has no time
for another session, and is given none before it says that it has. A slot is given back when the block
of `acquire` is left, which callers do only after the worker has ended all three calls of the session, that is
after it has cleaned up.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from antiphon.semconv import Reason, lease_mac
from ws_adapter.dispatch.base import POOL, Lease, PoolStatus, QueuePlace, QueueView, Running, Waiting
from ws_adapter.dispatch.estimate import Lengths, estimate_waits
from ws_adapter.process.clock import Clock, Timer
from ws_adapter.process.errors import (
    AttachFailed,
    DispatchError,
    DispatcherUnavailable,
    QueueFull,
    WaitCancelled,
    WaitExpired,
)
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.worker.registry import Registry, WorkerInfo

logger = logging.getLogger(__name__)

_ESTIMATE_AGE_S: Final = 1.0

_SUSPICIOUS: Final = frozenset({Reason.WORKER_LOST, Reason.ATTACH_TIMEOUT, Reason.LOADING, Reason.DRAINING})
"""After these a worker gets no session until it has answered again."""

_REFUSED_LEASE: Final = frozenset({Reason.LEASE_MISSING, Reason.LEASE_INVALID})

_EPOCH_LEAP: Final = 2**32
"""Epochs are Unix milliseconds to begin with; this is 50 days."""


@dataclass(frozen=True)
class QueueRules:
    """Times in seconds; `session_limits_s` cap the estimates, 0 or no entry for no limit."""

    capacity: int = 1000
    update_s: float = 3.0
    no_worker_grace_s: float = 10.0
    session_limits_s: Mapping[Kind, float] = field(default_factory=dict)


class _Ticket:
    """A caller. Settled by a lease or by an error, whichever comes first."""

    def __init__(
        self, owner: "InProcessDispatcher", kind: Kind, label: str, max_wait: float, again: bool
    ) -> None:
        self.id = f"ticket_{secrets.token_hex(6)}"
        self.kind = kind
        self.label = label
        self.max_wait = max_wait
        self.again = again
        self.entered_at = owner.clock.now()
        self.position: int | None = None
        self.lease: Lease | None = None
        self.granted_at = 0.0
        self._owner = owner
        self._error: DispatchError | None = None
        self._news = asyncio.Event()

    def grant(self, lease: Lease, now: float) -> None:
        self.lease, self.granted_at = lease, now
        self._news.set()

    def fail(self, error: DispatchError) -> None:
        self._error = self._error or error
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
    """See `Dispatcher`. There is one pool, so `pool` makes no difference.

    Leases are signed with `worker_key`; workers without that key do not look at them.
    """

    def __init__(
        self, registry: Registry, clock: Clock, rules: QueueRules, worker_key: bytes | None = None
    ) -> None:
        self.clock = clock
        self.rules = rules
        self._registry = registry
        self._waiting: deque[_Ticket] = deque()
        self._held: dict[tuple[str, int], _Ticket] = {}
        self._returned: dict[tuple[str, int], int] = {}
        """Slots that were given back, and how many questions their workers had been asked by then."""
        self._worker_key = worker_key
        self._epoch = round(clock.unix() * 1000)  # above what a dispatcher before this one has given
        self._lengths = Lengths()
        self._places: dict[str, QueuePlace] = {}
        self._placed_at = 0.0
        self._deserted: Timer | None = None
        self._is_deserted = False
        registry.changed = self._registry_changed
        self._registry_changed()

    @asynccontextmanager
    async def acquire(
        self, pool: str, kind: Kind, max_wait: float, *, label: str = "", again: bool = False
    ) -> AsyncIterator[_Ticket]:
        """See `Dispatcher.acquire`."""
        ticket = _Ticket(self, kind, label, max_wait, again)
        self._enter(ticket)
        expiry = self._at(max_wait, lambda: self._expire(ticket)) if max_wait else None
        was_used = False
        try:
            yield ticket
            was_used = True
        except AttachFailed as error:
            if ticket.lease is not None:
                self._attach_failed(ticket.lease, error.reason)
            raise
        finally:
            if expiry is not None:
                expiry.cancel()
            self._leave(ticket, was_used)

    async def cancel(self, pool: str, ticket_id: str) -> bool:
        """See `Dispatcher.cancel`."""
        for ticket in self._waiting:
            if ticket.id == ticket_id:
                self._dismiss(ticket, WaitCancelled("the place was given up"))
                return True
        return False

    async def view(self, pool: str) -> QueueView:
        """See `Dispatcher.view`."""
        now, unix = self.clock.now(), self.clock.unix()
        waiting = tuple(
            Waiting(
                place=self.place(ticket),
                kind=ticket.kind,
                label=ticket.label,
                enqueued_at=unix - (now - ticket.entered_at),
                waited_s=now - ticket.entered_at,
            )
            for ticket in self._waiting
        )
        running = tuple(
            Running(
                worker_id=worker_id,
                slot=slot,
                kind=holder.kind,
                started_at=unix - (now - holder.granted_at),
                elapsed_s=now - holder.granted_at,
                remaining_s=self._remaining(holder, now),
                remaining_is_guess=not self._lengths.are_known(holder.kind),
            )
            for (worker_id, slot), holder in self._held.items()
        )
        return QueueView(self.rules.capacity, waiting, running)

    async def status(self, pool: str) -> PoolStatus:
        """See `Dispatcher.status`."""
        ready = self._registry.ready()
        slots = sum(info.slots for _, info in ready)
        open_ones = [(target, info) for target, info in ready if self._registry.is_open(target)]
        free = sum(len(self._free_slots(target, info)) for target, info in open_ones)
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

    def _enter(self, ticket: _Ticket) -> None:
        if self._is_deserted:
            raise DispatcherUnavailable("no worker is ready")
        if ticket.again:
            ahead = sum(1 for _ in takewhile(lambda waiting: waiting.again, self._waiting))
            self._waiting.insert(ahead, ticket)
        else:
            self._waiting.append(ticket)
        self._pump()
        if len(self._waiting) > self.rules.capacity and not ticket.again and ticket.lease is None:
            self._remove(ticket)
            raise QueueFull(f"{self.rules.capacity} sessions wait already")

    def _leave(self, ticket: _Ticket, was_used: bool) -> None:
        if ticket.lease is None:
            self._remove(ticket)
            return
        lease = ticket.lease
        del self._held[lease.worker_id, lease.slot]
        self._returned[lease.worker_id, lease.slot] = self._registry.questions(lease.target)
        if was_used:
            self._lengths.add(ticket.kind, self.clock.now() - ticket.granted_at)
        self._pump()

    def _attach_failed(self, lease: Lease, reason: Reason) -> None:
        if reason in _SUSPICIOUS:
            self._registry.suspect(lease.target)
        elif reason is Reason.NO_FREE_SLOT:
            self._registry.shut(lease.target)
        elif reason in _REFUSED_LEASE:
            logger.error(
                "worker %s refuses leases (%s): give it and this adapter the same key with --worker-key-file",
                lease.target,
                reason,
            )
        elif reason is Reason.STALE_LEASE:
            self._epoch += _EPOCH_LEAP  # the wall clock went back between two starts

    def _remove(self, ticket: _Ticket) -> None:
        if ticket in self._waiting:
            self._waiting.remove(ticket)
            self._places.clear()

    def _expire(self, ticket: _Ticket) -> None:
        if ticket.lease is None:
            self._dismiss(ticket, WaitExpired("the longest wait is over"))

    def _dismiss(self, ticket: _Ticket, error: DispatchError) -> None:
        self._remove(ticket)
        ticket.fail(error)

    def _pump(self) -> None:
        """Gives free slots to the oldest tickets, each time one of the worker with the most free ones."""
        while self._waiting:
            offers = [
                (len(free), target, info.worker_id, free[self._epoch % len(free)])
                for target, info in self._registry.ready()
                if self._registry.is_open(target) and (free := self._free_slots(target, info))
            ]
            if not offers:
                break
            _, target, worker_id, slot = max(offers, key=lambda offer: offer[0])
            self._epoch += 1
            lease = Lease(target, self._token(worker_id, slot), worker_id, slot, self._epoch)
            ticket = self._waiting.popleft()
            self._held[worker_id, slot] = ticket
            ticket.grant(lease, self.clock.now())
        self._places.clear()

    def _token(self, worker_id: str, slot: int) -> str:
        key = self._worker_key
        mac = "" if key is None else lease_mac(key, POOL, worker_id, slot, self._epoch)
        return f"{slot}:{self._epoch}:{mac}"

    def _free_slots(self, target: str, info: WorkerInfo) -> list[int]:
        """Those that are nobody's: also sessions may hold one that came past this dispatcher."""
        occupied = self._registry.occupied(target)
        slots = [(info.worker_id, slot) for slot in range(info.slots)]
        return [
            slot
            for worker_id, slot in slots
            if (worker_id, slot) not in self._held
            and not (slot in occupied.slots and occupied.question > self._returned.get((worker_id, slot), 0))
        ]

    # ----------------------------------------------------------------------------------- the workers

    def _registry_changed(self) -> None:
        ready = {info.worker_id for _, info in self._registry.ready()}
        self._returned = {slot: at for slot, at in self._returned.items() if slot[0] in ready}
        if ready:
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
        now = self.clock.now()
        ready = self._registry.ready()
        at_ready = {info.worker_id for _, info in ready}
        holders = [holder for (worker_id, _), holder in self._held.items() if worker_id in at_ready]
        slots = [self._remaining(holder, now) for holder in holders]
        for target, info in ready:
            if self._registry.is_open(target):
                slots += [0.0] * len(self._free_slots(target, info))
        lengths = self._expected_lengths(holders, now)
        waits = estimate_waits(slots, lengths) if slots else [ticket.max_wait for ticket in self._waiting]
        is_guess = not slots or not all(self._lengths.are_known(holder.kind) for holder in holders)
        self._places = {}
        for position, (ticket, wait) in enumerate(zip(self._waiting, waits, strict=True), 1):
            # A caller who lost its worker goes ahead of others, whose position must not grow.
            ticket.position = min(position, ticket.position or position)
            self._places[ticket.id] = QueuePlace(ticket.id, ticket.position, len(lengths), wait, is_guess)
            is_guess = is_guess or not self._lengths.are_known(ticket.kind)
        self._placed_at = now

    def _expected_lengths(self, holders: Sequence[_Ticket], now: float) -> list[float]:
        """How long each of those who wait will have its slot."""
        running = {
            kind: [now - holder.granted_at for holder in holders if holder.kind is kind] for kind in Kind
        }
        expected = {kind: self._lengths.expected(kind, running[kind]) for kind in Kind}
        return [expected[ticket.kind] for ticket in self._waiting]

    def _remaining(self, holder: _Ticket, now: float) -> float:
        limit = self.rules.session_limits_s.get(holder.kind, 0.0)
        return self._lengths.remaining(holder.kind, now - holder.granted_at, limit)
