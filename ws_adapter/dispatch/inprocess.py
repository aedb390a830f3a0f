"""The dispatcher of a single adapter: a queue in memory for each pool of its workers.

The free slots of a worker are its slots, less those leased here and those that its GetInfo reports as
occupied. A worker that refuses a lease for lack of capacity gets no session until it reports capacity. A slot
is given back when the block of `acquire` is left. Callers leave it only after the worker has ended all three
calls of the session, that is after it has cleaned up.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from itertools import chain
from typing import Final

from ws_adapter.dispatch.base import (
    ANY_TERMS,
    ANYTHING,
    Lease,
    LeaseTerms,
    Need,
    PoolStatus,
    Priority,
    QueuePlace,
    QueueView,
    Running,
    Share,
    Waiting,
)
from ws_adapter.dispatch.estimate import EstimateInputs, Session
from ws_adapter.dispatch.leases import Signer, attach_failed
from ws_adapter.dispatch.line import Line
from ws_adapter.dispatch.pools import PoolOffer, Served, choose
from ws_adapter.dispatch.rules import QueueRules
from ws_adapter.dispatch.ticket import QueuedTicket, SlotRequest, slot_limit
from ws_adapter.process.clock import Clock, Timer
from ws_adapter.process.errors import (
    AttachFailed,
    DispatchError,
    DispatcherUnavailable,
    QueueFull,
    SlotLimit,
    WaitCancelled,
    WaitExpired,
)
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.worker.registry import Registry, WorkerInfo

_UNSERVED: Final = ""
"""The name of the queue of tickets that no worker can serve."""

_EPOCH_LEAP: Final = 2**32
"""The increase of the epoch once a worker has seen a higher one: 50 days, as epochs start as Unix
milliseconds."""


class _Ticket(QueuedTicket):
    """A ticket of this adapter."""

    line: Line["_Ticket"]
    unserved: Timer | None = None
    """The timer that runs while no worker can serve the ticket."""


class InProcessDispatcher:
    """The dispatcher of a single adapter.

    Leases are signed with `worker_key`; workers without that key do not check them.
    """

    def __init__(
        self, registry: Registry, clock: Clock, rules: QueueRules, worker_key: bytes | None = None
    ) -> None:
        self.clock = clock
        self._rules = rules
        self._registry = registry
        self._lines: dict[str, Line[_Ticket]] = {}
        self._held: defaultdict[str, dict[int, _Ticket]] = defaultdict(dict)
        """Tickets that hold a slot, by worker and slot."""
        self._returned: dict[tuple[str, int], int] = {}
        """Slots that were given back, with the number of GetInfo requests to their workers at that time."""
        self._served = Served()
        self._sign = Signer(worker_key, registry)
        self._epoch = round(clock.unix() * 1000)  # above the epochs of an earlier dispatcher
        self._no_worker_timer: Timer | None = None
        self._has_no_worker = False
        registry.changed = self._registry_changed
        self._registry_changed()

    @property
    def rules(self) -> QueueRules:
        """Return the rules of the queue; new rules apply at once."""
        return self._rules

    @rules.setter
    def rules(self, rules: QueueRules) -> None:
        self._rules = rules
        self._registry_changed()

    @asynccontextmanager
    async def acquire(
        self,
        kind: Kind,
        max_wait: float,
        *,
        need: Need = ANYTHING,
        label: str = "",
        again: str | None = None,
        terms: LeaseTerms = ANY_TERMS,
        share: Share | None = None,
        priority: Priority = Priority.NORMAL,
        revision: str = "",
    ) -> AsyncIterator[_Ticket]:
        request = SlotRequest(kind, need, label, again, max_wait, terms, share, priority, revision)
        ticket = _Ticket(request, self.clock, self.rules.update_s, self._place)
        self._enter(ticket)
        expiry = self._at(max_wait, lambda: self._expire(ticket)) if max_wait else None
        was_used = False
        try:
            yield ticket
            was_used = True
        except AttachFailed as error:
            if ticket.lease is not None and attach_failed(self._registry, ticket.lease, error):
                self._epoch += _EPOCH_LEAP  # the wall clock went back between two starts
            raise
        finally:
            if expiry is not None:
                expiry.cancel()
            self._leave(ticket, was_used)

    async def cancel(self, ticket_id: str) -> bool:
        for ticket in self._waiting():
            if ticket.id == ticket_id:
                self._dismiss(ticket, WaitCancelled("the place was given up"))
                return True
        return False

    async def find(self, ticket_id: str) -> Waiting | None:
        waiting = (self._seen(ticket) for ticket in self._waiting() if ticket.id == ticket_id)
        return next(waiting, None)

    async def view(self) -> QueueView:
        now, unix = self.clock.now(), self.clock.unix()
        waiting = tuple(self._seen(ticket) for ticket in self._waiting())
        running = []
        for worker_id, slot, holder in self._holders():
            session = self._session(holder)
            inputs = holder.line.inputs(0, [], self.rules.session_limits_s)
            running.append(
                Running(
                    worker_id=worker_id,
                    slot=slot,
                    kind=holder.request.kind,
                    started_at=unix - (now - holder.granted_at),
                    elapsed_s=session.elapsed_s,
                    remaining_s=inputs.remaining(session),
                    remaining_is_guess=not inputs.is_known(session),
                )
            )
        return QueueView(self.rules.capacity, waiting, tuple(running))

    async def status(self) -> PoolStatus:
        ready = self._ready()
        slots = sum(info.slots for _, info in ready)
        free = sum(self._free_count(target, info) for target, info in ready)
        return PoolStatus(len(ready), slots, free, sum(len(line.waiting) for line in self._lines.values()))

    def is_contended(self, pool: str) -> bool:
        return pool in self._lines and bool(self._lines[pool].waiting)

    def has_spare(self, kind: Kind, need: Need) -> bool:
        return any(offer.free_slots for offer in self._offers(SlotRequest(kind, need)))

    def has_room(self, pool: str, beside: str) -> bool:
        workers = self._workers(pool)
        is_free = any(self._free_count(target, info) for target, info in workers if target != beside)
        return is_free and not self.is_contended(pool)

    def start(self) -> None:
        """Do nothing: the dispatcher gives slots from its creation on."""

    async def close(self) -> None:
        if self._no_worker_timer is not None:
            self._no_worker_timer.cancel()

    # ------------------------------------------------------------------------------------- the queues

    def _enter(self, ticket: _Ticket) -> None:
        if self._has_no_worker:
            raise DispatcherUnavailable("no worker is ready")
        line = self._join_queue(ticket)
        if (limit := self._exceeded(ticket)) is not None:
            self._remove(ticket)
            raise limit
        self._pump(line)
        is_new = ticket.request.again != ticket.line.name
        if len(line.waiting) > self.rules.capacity and is_new and ticket.lease is None:
            self._remove(ticket)
            raise QueueFull(f"{self.rules.capacity} sessions wait already")

    def _join_queue(self, ticket: _Ticket) -> Line[_Ticket]:
        """Put a ticket in the queue of a pool that can serve it, else in that of unserved tickets."""
        name = choose(self._offers(ticket.request)) or _UNSERVED
        line = self._lines.setdefault(name, Line(name, self.clock))
        line.add(ticket)
        ticket.line = line
        if name == _UNSERVED and ticket.unserved is None:
            ticket.unserved = self._at(self.rules.no_worker_grace_s, lambda: self._fail_unserved(ticket))
        elif name != _UNSERVED:
            _stop(ticket)
        return line

    def _exceeded(self, ticket: _Ticket) -> SlotLimit | None:
        """Return the error of a ticket whose holder has too many slots of the pool; None if there is none.

        Tickets that no worker can serve are counted once there is one.
        """
        share, line = ticket.request.share, ticket.line
        if share is None or line.name == _UNSERVED:
            return None
        most = share.most or max(1, sum(info.slots for _, info in self._workers(line.name)) - 1)
        holders = (other for _, _, other in self._holders() if other.line is line)
        shares = (other.request.share for other in chain(line.waiting, holders))
        has = sum(1 for other in shares if other is not None and other.holder == share.holder)
        return slot_limit(most) if has > most else None

    def _offers(self, request: SlotRequest) -> list[PoolOffer]:
        offers = []
        for pool in self._served.able(self._pools(), request.kind, request.need):
            line = self._lines.setdefault(pool, Line(pool, self.clock))
            free = max(0, self._free_in(pool) - len(line.waiting))
            offers.append(PoolOffer(pool, free, 0.0 if free else self._wait_s(line, request.kind)))
        return offers

    def _wait_s(self, line: Line[_Ticket], kind: Kind) -> float:
        """Return how long one more ticket would wait."""
        waits = self._inputs(line).waits([*(ticket.request.kind for ticket in line.waiting), kind])
        return waits[-1].seconds if waits else 0.0

    def _pools(self) -> dict[str, list[WorkerInfo]]:
        pools: dict[str, list[WorkerInfo]] = {}
        for _, info in self._ready():
            pools.setdefault(info.pool, []).append(info)
        return pools

    def _leave(self, ticket: _Ticket, was_used: bool) -> None:
        if ticket.lease is None:
            self._remove(ticket)
            return
        lease = ticket.lease
        del self._held[lease.worker_id][lease.slot]
        self._returned[lease.worker_id, lease.slot] = self._registry.info_requests(lease.target)
        if was_used:
            ticket.line.lengths.add(ticket.request.kind, self.clock.now() - ticket.granted_at)
        self._pump(ticket.line)

    def _remove(self, ticket: _Ticket) -> None:
        _stop(ticket)
        ticket.line.remove(ticket)

    def _expire(self, ticket: _Ticket) -> None:
        if ticket.lease is None:
            self._dismiss(ticket, WaitExpired("the longest wait is over"))

    def _fail_unserved(self, ticket: _Ticket) -> None:
        self._dismiss(ticket, DispatcherUnavailable("no worker that could serve it is ready"))

    def _dismiss(self, ticket: _Ticket, error: DispatchError) -> None:
        self._remove(ticket)
        ticket.fail(error)

    def _pump(self, line: Line[_Ticket]) -> None:
        """Give free slots to the first tickets, each from the worker with the most free slots.

        With weights, only workers of the revision whose turn it is are considered.
        """
        weights = self.rules.weights(line.name)
        while line.waiting:
            offers = [
                (free, target, info)
                for target, info in self._workers(line.name)
                if (free := self._free_count(target, info))
            ]
            if not offers:
                break
            if weights.of:
                able = {info.revision for _, _, info in offers}
                turn = line.round_robin.next(weights, able, line.waiting[0].request.revision)
                offers = [offer for offer in offers if offer[2].revision == turn]
            _, target, info = max(offers, key=lambda offer: offer[0])
            worker_id, free_slots = info.worker_id, self._free_slots(target, info)
            slot = free_slots[self._epoch % len(free_slots)]
            self._epoch += 1
            ticket = line.next()
            token = self._sign(target, worker_id, slot, self._epoch, ticket.request.terms)
            _stop(ticket)
            self._held[worker_id][slot] = ticket
            ticket.grant(Lease(target, token, worker_id, slot, self._epoch, line.name))
        line.invalidate()

    def _ready(self) -> list[tuple[str, WorkerInfo]]:
        """Return the workers that may get sessions: those whose revision has no weight get none."""
        return [
            (target, info)
            for target, info in self._registry.ready()
            if self.rules.weights(info.pool).take(info.revision)
        ]

    def _workers(self, pool: str) -> list[tuple[str, WorkerInfo]]:
        return [(target, info) for target, info in self._ready() if info.pool == pool]

    def _foreign_slots(self, target: str, info: WorkerInfo) -> set[int]:
        """Return the slots of sessions that this dispatcher did not grant."""
        worker_id, occupied = info.worker_id, self._registry.occupied(target)
        return {
            slot
            for slot in occupied.slots.keys() - self._held[worker_id].keys()
            if occupied.request > self._returned.get((worker_id, slot), 0)
        }

    def _free_count(self, target: str, info: WorkerInfo) -> int:
        """Return the number of free slots."""
        if not self._registry.is_open(target):
            return 0
        return info.slots - len(self._held[info.worker_id]) - len(self._foreign_slots(target, info))

    def _free_slots(self, target: str, info: WorkerInfo) -> list[int]:
        """Return the free slots of a worker that accepts sessions."""
        taken = self._foreign_slots(target, info).union(self._held[info.worker_id])
        return [slot for slot in range(info.slots) if slot not in taken]

    def _free_in(self, pool: str) -> int:
        return sum(self._free_count(target, info) for target, info in self._workers(pool))

    def _holders(self) -> Iterator[tuple[str, int, _Ticket]]:
        """Yield worker, slot and ticket of every session."""
        for worker_id, held in self._held.items():
            for slot, holder in held.items():
                yield worker_id, slot, holder

    # ----------------------------------------------------------------------------------- the workers

    def _registry_changed(self) -> None:
        ready = self._ready()
        ids = {info.worker_id for _, info in self._registry.ready()}
        self._returned = {slot: at for slot, at in self._returned.items() if slot[0] in ids}
        for worker_id in [each for each, held in self._held.items() if not held and each not in ids]:
            del self._held[worker_id]
        if ready:
            self._has_no_worker = False
            if self._no_worker_timer is not None:
                self._no_worker_timer.cancel()
                self._no_worker_timer = None
        elif self._no_worker_timer is None:
            self._no_worker_timer = self._at(self.rules.no_worker_grace_s, self._fail_all)
        pools = self._pools()
        for line in [line for name, line in self._lines.items() if name not in pools]:
            self._move(line)
        for line in list(self._lines.values()):
            self._pump(line)

    def _move(self, line: Line[_Ticket]) -> None:
        """Move tickets whose pool has no worker to another pool that can serve them, else to the unserved
        queue."""
        for ticket in list(line.waiting):
            line.remove(ticket)
            self._join_queue(ticket)
            if (limit := self._exceeded(ticket)) is not None:
                self._dismiss(ticket, limit)

    def _fail_all(self) -> None:
        self._has_no_worker = True
        for ticket in list(self._waiting()):
            self._dismiss(ticket, DispatcherUnavailable("no worker is ready"))

    def _at(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return self.clock.call_at(self.clock.now() + seconds, callback)

    # ----------------------------------------------------------------------------------------------- views

    def _waiting(self) -> chain[_Ticket]:
        return chain.from_iterable(line.waiting for line in self._lines.values())

    def _place(self, ticket: _Ticket) -> QueuePlace:
        return ticket.line.place(ticket, lambda: self._inputs(ticket.line))

    def _seen(self, ticket: _Ticket) -> Waiting:
        waited_s = self.clock.now() - ticket.entered_at
        return Waiting(
            place=self._place(ticket),
            kind=ticket.request.kind,
            label=ticket.request.label,
            enqueued_at=self.clock.unix() - waited_s,
            waited_s=waited_s,
        )

    def _session(self, holder: _Ticket) -> Session:
        return Session(holder.request.kind, self.clock.now() - holder.granted_at)

    def _inputs(self, line: Line[_Ticket]) -> EstimateInputs:
        at = {info.worker_id for _, info in self._workers(line.name)}
        running = [self._session(holder) for worker_id in at for holder in self._held[worker_id].values()]
        return line.inputs(self._free_in(line.name), running, self.rules.session_limits_s)


def _stop(ticket: _Ticket) -> None:
    if ticket.unserved is not None:
        ticket.unserved.cancel()
        ticket.unserved = None
