"""The dispatcher of several adapters: their queues are in one Redis, and every call advances them.

One task speaks to Redis. It sends heartbeats for the tickets of this adapter at least once a second, and the
requests of callers at once. A running session needs no heartbeat.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from antiphon_service.redis import DIRECTORY, disconnect
from ws_adapter.dispatch.base import (
    ANY_TERMS,
    ANYTHING,
    HEAD_START,
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
from ws_adapter.dispatch.functions import Call, Stats, TicketView, call_all
from ws_adapter.dispatch.leases import Signer, attach_failed
from ws_adapter.dispatch.pools import PoolOffer, Served, choose
from ws_adapter.dispatch.rules import QueueRules
from ws_adapter.dispatch.shared_pool import SharedPool, SharedTicket, kind_of, session_of
from ws_adapter.dispatch.ticket import SlotRequest, slot_limit
from ws_adapter.dispatch.wake_ups import WakeUps
from ws_adapter.process.clock import Clock
from ws_adapter.process.errors import (
    AttachFailed,
    DispatchError,
    DispatcherUnavailable,
    QueueFull,
    WaitCancelled,
    WaitExpired,
)
from ws_adapter.process.tasks import end
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.worker.registry import Registry

if TYPE_CHECKING:
    from redis.asyncio import Redis

logger = logging.getLogger(__name__)

BEAT_S: Final = 1.0
TICKET_TTL_MS: Final = 3000
WORKER_LIFE_S: Final = 6.0
RETRY_S: Final = 0.2
"""The seconds between two attempts to reach an unavailable Redis."""

GIVE_BACK_S: Final = 10.0
"""The seconds for which giving a place or a lease back is retried; then it has expired in Redis."""

MOST_SEEN: Final = 1000
"""The most waiting tickets of a pool that are shown."""


class RedisDispatcher:
    """The dispatcher of several adapters. Leases are signed with `worker_key`."""

    def __init__(
        self,
        client: "Redis",
        registry: Registry,
        clock: Clock,
        rules: QueueRules,
        worker_key: bytes | None = None,
    ) -> None:
        """`client` is closed with the dispatcher; `registry` follows the workers that Redis has."""
        self.clock = clock
        self._rules = rules
        self._is_weighed = True
        """Whether Redis has the weights of all waiting tickets."""
        self.adapter_id = secrets.token_hex(6)
        self._client = client
        self._registry = registry
        self._served = Served()
        self._sign = Signer(worker_key, registry)
        self._pools: dict[str, SharedPool] = {}
        self._outside: list[SharedTicket] = []
        """Tickets that are in no pool yet, in order."""
        self._returns: list[tuple[float, Call]] = []
        """Pending calls that give a place or a lease back, with the times of their expiry."""
        self._listed_at: dict[str, float] = {}
        """Addresses of workers, with the time when Redis listed each last."""
        self._woken: set[str] = set()
        self._wake = asyncio.Event()
        self._wake_ups = WakeUps(client, self.adapter_id, self._woke)
        self._task: asyncio.Task[None] | None = None
        self._away_at: float | None = None
        """The time since when Redis cannot be reached."""
        self._no_worker_since: float | None = clock.now()
        """The time since when there is no worker at all."""
        registry.changed = self.workers_changed

    @property
    def rules(self) -> QueueRules:
        """Return the rules of the queue; new rules apply at once."""
        return self._rules

    @rules.setter
    def rules(self, rules: QueueRules) -> None:
        self._is_weighed = self._is_weighed and rules.revisions == self._rules.revisions
        self._rules = rules
        for pool in self._pools.values():
            pool.weights = rules.weights(pool.name)
        self._wake.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._wake_ups.start()

    async def close(self) -> None:
        await self._wake_ups.stop()
        if self._task is not None:
            await end(self._task)
        if self._returns and self._away_at is None:
            with suppress(Exception):
                await call_all(self._client, [call for _, call in self._returns])
        await disconnect(self._client)

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
    ) -> AsyncIterator[SharedTicket]:
        if self._has_no_worker():
            raise DispatcherUnavailable("no worker is ready")
        request = SlotRequest(kind, need, label, again, max_wait, terms, share, priority, revision)
        ticket = SharedTicket(request, self.clock, self.rules.update_s, self._place)
        self._outside.append(ticket)
        self._wake.set()
        now = self.clock.now()
        arrival_timer = self.clock.call_at(now + self.rules.arrival_wait_s, lambda: self._time_out(ticket))
        expiry = self.clock.call_at(now + max_wait, lambda: self._expire(ticket)) if max_wait else None
        try:
            await ticket.arrived()
            yield ticket
        except AttachFailed as error:
            if ticket.lease is not None and attach_failed(self._registry, ticket.lease, error):
                logger.warning("worker %s has seen a higher epoch than this lease's", ticket.lease.target)
            raise
        finally:
            arrival_timer.cancel()
            if expiry is not None:
                expiry.cancel()
            self._leave(ticket)

    async def cancel(self, ticket_id: str) -> bool:
        for ticket in self._own():
            if ticket.id == ticket_id and not ticket.is_settled:
                self._dismiss(ticket, WaitCancelled("the place was given up"))
                return True
        answers: list[int] = []
        await self._ask("cancel", (ticket_id,), lambda pool, answer: answers.append(answer))
        return any(answers)

    async def find(self, ticket_id: str) -> Waiting | None:
        for ticket in self._own():
            if ticket.id == ticket_id and not ticket.is_settled:
                return self._own_waiting(ticket)
        found: list[Waiting] = []

        def take(pool: SharedPool, answer: list[Any]) -> None:
            if answer[0]:
                found.append(
                    self._others_waiting(pool, msgspec.json.decode(answer[1], type=TicketView), answer[0])
                )

        await self._ask("find", (ticket_id,), take)
        return found[0] if found else None

    async def view(self) -> QueueView:
        own = {ticket.id: ticket for ticket in self._own() if not ticket.is_settled}
        waiting: list[Waiting] = []

        def take(pool: SharedPool, answer: str) -> None:
            for rank, seen in enumerate(msgspec.json.decode(answer, type=list[TicketView]), 1):
                ticket = own.pop(seen.ticket, None)
                waiting.append(
                    self._own_waiting(ticket) if ticket else self._others_waiting(pool, seen, rank)
                )

        await self._ask("waiting", (0, MOST_SEEN), take)
        waiting += [self._own_waiting(ticket) for ticket in own.values()]
        running = tuple(running for pool in self._pools.values() for running in self._running(pool))
        return QueueView(self.rules.capacity, tuple(waiting), running)

    async def status(self) -> PoolStatus:
        pools = self._pools.values()
        workers = [worker for pool in pools for worker in pool.open_workers if worker.accepting]
        return PoolStatus(
            len(workers),
            sum(worker.slots for worker in workers),
            sum(worker.free for worker in workers),
            sum(pool.stats.length for pool in pools) + len(self._outside),
            self._away_at is not None,
        )

    def is_contended(self, pool: str) -> bool:
        return pool in self._pools and self._pools[pool].stats.length > 0

    def has_spare(self, kind: Kind, need: Need) -> bool:
        """Return whether a spare slot was in the last statistics of Redis, a second ago at most."""
        return self._away_at is None and any(
            offer.free_slots for offer in self._offers(SlotRequest(kind, need))
        )

    def has_room(self, pool: str, beside: str) -> bool:
        workers = self._pools[pool].open_workers if pool in self._pools else ()
        is_free = any(worker.accepting and worker.free for worker in workers if worker.target != beside)
        return is_free and not self.is_contended(pool)

    def workers_changed(self) -> None:
        """Note that a worker became ready or stopped being ready."""
        self._wake.set()

    # ---------------------------------------------------------------------------------- to and from Redis

    async def _run(self) -> None:
        beat_at = self.clock.now()
        while True:
            self._wake.clear()
            is_beat = self.clock.now() >= beat_at
            if is_beat:
                beat_at = self.clock.now() + BEAT_S
            try:
                await self._exchange(is_beat=is_beat)
            except Exception as error:
                self._lost(error)
                await asyncio.sleep(RETRY_S)
                beat_at = self.clock.now()
                continue
            if self._away_at is not None:
                logger.info("the shared queue is back")
                self._away_at = None
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, beat_at - self.clock.now())):
                    await self._wake.wait()

    async def _exchange(self, *, is_beat: bool) -> None:
        """Send all pending calls to Redis, and handle their answers."""
        if is_beat:
            await call_all(self._client, [Call("pools", DIRECTORY, (), self._update_pools)])
            await call_all(self._client, [self._stats_of(pool) for pool in self._pools.values()])
            self._update_workers({target for pool in self._pools.values() for target in pool.targets})
            self._move_unserved()
        returns, self._returns = self._returns, []
        woken, self._woken = self._woken, set()
        weighings = [] if self._is_weighed else list(self._weigh())
        self._is_weighed = True
        try:
            calls = [call for _, call in returns] + list(self._beats(None if is_beat else woken))
            await call_all(self._client, [*weighings, *calls, *self._enter()])
        except BaseException:
            now = self.clock.now()
            self._returns = [late for late in returns if late[0] > now] + self._returns
            self._woken |= woken
            self._is_weighed = self._is_weighed and not weighings
            raise

    def _update_workers(self, targets: Iterable[str]) -> None:
        """Update the registry's workers; each is kept for a while, since an emptied database lists none."""
        now = self.clock.now()
        named = set(self._listed_at)
        self._listed_at |= dict.fromkeys(targets, now)
        self._listed_at = {target: at for target, at in self._listed_at.items() if now - at < WORKER_LIFE_S}
        if self._listed_at.keys() != named:
            self._registry.set_targets(sorted(self._listed_at))

    def _lost(self, error: Exception) -> None:
        now = self.clock.now()
        if self._away_at is None:
            logger.error("the shared queue cannot be reached: %s", error)
            self._away_at = now
        self._returns = [late for late in self._returns if late[0] > now]
        if now - self._away_at > self.rules.outage_limit_s:
            for ticket in self._own():
                if not ticket.is_settled:
                    self._dismiss(ticket, DispatcherUnavailable("the shared queue cannot be reached"))

    async def _ask(
        self, function: str, arguments: Sequence[object], take: Callable[[SharedPool, Any], None]
    ) -> None:
        """Call a function for every pool; while Redis cannot be reached, call no `take`."""
        if self._away_at is not None:
            return
        pools = self._pools.values()
        calls = [Call(function, pool.key, arguments, partial(take, pool)) for pool in pools]
        with suppress(Exception):
            await call_all(self._client, calls)

    def _woke(self, ticket_id: str) -> None:
        self._woken.add(ticket_id)
        self._wake.set()

    def _update_pools(self, names: list[str]) -> None:
        kept = {name: pool for name, pool in self._pools.items() if name in names or pool.tickets}
        for pool in kept.values():
            pool.limits_s = self.rules.session_limits_s
        new = {name: SharedPool(name, self.rules.session_limits_s) for name in names if name not in kept}
        for name, pool in new.items():
            pool.weights = self.rules.weights(name)
        self._pools = kept | new
        self._wake_ups.listen_to(self._pools)

    def _stats_of(self, pool: SharedPool) -> Call:
        decode = msgspec.json.Decoder(Stats).decode
        return Call("stats", pool.key, tuple(Kind), lambda answer: pool.learn(decode(answer)))

    def _weigh(self) -> Iterable[Call]:
        """Yield the calls that give waiting tickets the current weights."""
        for pool in self._pools.values():
            if pool.tickets:
                arguments = (str(pool.weights), *pool.tickets)
                yield Call("weigh", pool.key, arguments, lambda _: None)

    def _beats(self, chosen: set[str] | None) -> Iterable[Call]:
        """Yield the heartbeats of the chosen tickets, or of all."""
        for pool in self._pools.values():
            ids = [ticket for ticket in pool.tickets if chosen is None or ticket in chosen]
            if ids:
                arguments = (self.adapter_id, TICKET_TTL_MS, *ids)
                yield Call("adapter_beat", pool.key, arguments, partial(self._take_places, pool, ids))

    def _take_places(self, pool: SharedPool, ids: list[str], answer: list[Any]) -> None:
        _, places, *grants = answer
        leases = iter(grants)
        for ticket_id, word in zip(ids, places.split(), strict=True):
            lease = next(leases) if word == "granted" else None
            ticket = pool.tickets.get(ticket_id)
            if ticket is None:
                continue
            if lease is not None:
                self._grant(pool, ticket, *lease)
            elif word == "cancelled":
                self._dismiss(ticket, WaitCancelled("the place was given up"))
            elif word == "gone":
                del pool.tickets[ticket_id]
                self._outside.append(ticket)
                self._wake.set()
            else:
                ticket.rank = int(word)

    def _enter(self) -> list[Call]:
        """Put the tickets without a pool into pools that can serve them."""
        calls = []
        unserved: set[tuple[Kind, Need]] = set()
        for ticket in self._outside:
            wanted = ticket.request.kind, ticket.request.need
            pool = self._pool_for(ticket) if wanted not in unserved else None
            if pool is None:
                unserved.add(wanted)
            if pool is not None:
                pool.unreported += 1
                calls.append(self._enqueue(pool, ticket))
            elif ticket.unserved_at is None:
                ticket.unserved_at = self.clock.now()
                ticket.arrive()
        return calls

    def _pool_for(self, ticket: SharedTicket) -> SharedPool | None:
        if ticket.pool is not None and ticket.pool.name in self._pools:
            return ticket.pool  # where its place is
        # Sessions that lost their worker stay ahead of new ones also while no other worker is there.
        name = choose(self._offers(ticket.request)) or ticket.request.again
        return self._pools.get(name) if name is not None else None

    def _offers(self, request: SlotRequest) -> Iterable[PoolOffer]:
        infos = dict(self._registry.ready())
        ready = {
            name: [infos[each.target] for each in pool.open_workers if each.target in infos]
            for name, pool in self._pools.items()
        }
        for name in self._served.able(ready, request.kind, request.need):
            pool = self._pools[name]
            yield PoolOffer(name, pool.free_slots, pool.wait_of_next(request.kind))

    def _enqueue(self, pool: SharedPool, ticket: SharedTicket) -> Call:
        request = ticket.request
        prior = ticket.seq or ("head" if request.again == pool.name else 0)
        waited_ms = round((self.clock.now() - ticket.entered_at) * 1000)
        arguments = (
            *(ticket.id, self.adapter_id, TICKET_TTL_MS, request.kind, self.rules.capacity, prior),
            *(request.label, waited_ms),
        )
        ticket.asked = pool
        entered = partial(self._entered, pool, ticket)
        share: tuple[str, int] = ("", 0)
        if request.share is not None:
            share = (self._sign.pseudonym(request.share.holder), request.share.most)
        ahead = HEAD_START * request.priority
        if pool.weights.of:
            weights = (str(pool.weights), request.revision)
            return Call("enqueue_weighted", pool.key, (*arguments, *share, ahead, *weights), entered)
        if request.priority is not Priority.NORMAL:
            return Call("enqueue_as", pool.key, (*arguments, *share, ahead), entered)
        if request.share is None:
            return Call("enqueue", pool.key, arguments, entered)
        return Call("enqueue_for", pool.key, (*arguments, *share), entered)

    def _entered(self, pool: SharedPool, ticket: SharedTicket, answer: list[Any]) -> None:
        if ticket not in self._outside:
            return  # given up meanwhile: `_leave` gives its place back
        self._outside.remove(ticket)
        match answer:
            case ["full"]:
                ticket.fail(QueueFull(f"{self.rules.capacity} sessions wait already"))
            case ["limit", most]:
                ticket.fail(slot_limit(most))
            case ["granted", *lease]:
                self._grant(pool, ticket, *lease)
            case ["queued", seq, rank, _]:
                ticket.pool, ticket.seq, ticket.rank, ticket.unserved_at = pool, seq, rank, None
                pool.tickets[ticket.id] = ticket
        ticket.arrive()

    def _grant(
        self, pool: SharedPool, ticket: SharedTicket, worker: str, slot: int, epoch: int, target: str
    ) -> None:
        pool.tickets.pop(ticket.id, None)
        pool.began(ticket.request.kind)
        ticket.pool = pool
        self._update_workers({target})
        token = self._sign(target, worker, slot, epoch, ticket.request.terms)
        ticket.grant(Lease(target, token, worker, slot, epoch, pool.name))

    # ----------------------------------------------------------------------------------------- tickets

    def _own(self) -> list[SharedTicket]:
        return [
            *self._outside,
            *(ticket for pool in self._pools.values() for ticket in pool.tickets.values()),
        ]

    def _leave(self, ticket: SharedTicket) -> None:
        """Give back the place or the lease of a ticket, also one that Redis has not reported yet."""
        if ticket in self._outside:
            self._outside.remove(ticket)
        pool = ticket.pool or ticket.asked
        if pool is None:
            return
        pool.tickets.pop(ticket.id, None)
        if ticket.lease is not None:
            lease = ticket.lease
            self._give_back("lease_return", pool, lease.worker_id, lease.slot, lease.epoch)
        elif not ticket.has_left:
            self._give_back("leave", pool, ticket.id)
        ticket.has_left = True

    def _give_back(self, function: str, pool: SharedPool, *arguments: object) -> None:
        call = Call(function, pool.key, arguments, lambda _: None)
        self._returns.append((self.clock.now() + GIVE_BACK_S, call))
        self._wake.set()

    def _dismiss(self, ticket: SharedTicket, error: DispatchError) -> None:
        self._leave(ticket)
        ticket.fail(error)
        ticket.arrive()

    def _time_out(self, ticket: SharedTicket) -> None:
        if not ticket.has_arrived:
            self._dismiss(ticket, DispatcherUnavailable("the shared queue cannot be reached"))

    def _expire(self, ticket: SharedTicket) -> None:
        if not ticket.is_settled:
            self._dismiss(ticket, WaitExpired("the longest wait is over"))

    def _has_no_worker(self) -> bool:
        since = self._no_worker_since
        return since is not None and self.clock.now() - since >= self.rules.no_worker_grace_s

    def _move_unserved(self) -> None:
        """Move tickets whose pool has no worker to another pool, or refuse them after the grace time."""
        now, grace_s = self.clock.now(), self.rules.no_worker_grace_s
        has_worker = any(pool.open_workers for pool in self._pools.values())
        self._no_worker_since = (
            None if has_worker else (now if self._no_worker_since is None else self._no_worker_since)
        )
        for pool in self._pools.values():
            pool.no_worker_since = None if pool.open_workers else (pool.no_worker_since or now)
            if pool.no_worker_since is None:
                continue
            for ticket in list(pool.tickets.values()):
                if now - pool.no_worker_since >= grace_s:
                    self._dismiss(ticket, DispatcherUnavailable("no worker that could serve it is ready"))
                elif any(self._offers(ticket.request)):
                    self._move(pool, ticket)
        for ticket in list(self._outside):
            since = ticket.unserved_at
            if since is not None and (now - since >= grace_s or self._has_no_worker()):
                self._dismiss(ticket, DispatcherUnavailable("no worker that could serve it is ready"))

    def _move(self, pool: SharedPool, ticket: SharedTicket) -> None:
        """Move a ticket to the end of another pool's queue."""
        self._give_back("leave", pool, ticket.id)
        del pool.tickets[ticket.id]
        ticket.pool, ticket.asked, ticket.seq = None, None, 0
        self._outside.append(ticket)

    # ----------------------------------------------------------------------------------------------- views

    def _place(self, ticket: SharedTicket) -> QueuePlace:
        if ticket.pool is not None:
            return ticket.pool.place(ticket)
        position = self._outside.index(ticket) + 1 if ticket in self._outside else 1
        place = ticket.move_to(position)
        return QueuePlace(ticket.id, place, max(place, len(self._outside)), ticket.request.max_wait_s, True)

    def _own_waiting(self, ticket: SharedTicket) -> Waiting:
        waited_s = self.clock.now() - ticket.entered_at
        request = ticket.request
        return Waiting(
            self._place(ticket), request.kind, request.label, self.clock.unix() - waited_s, waited_s
        )

    def _others_waiting(self, pool: SharedPool, seen: TicketView, rank: int) -> Waiting:
        kind = kind_of(seen.kind) or Kind.AUDIO_DUPLEX
        waited_s = seen.waited / 1000
        wait = pool.wait_at(rank, kind)
        place = QueuePlace(seen.ticket, rank, max(rank, pool.stats.length), wait.seconds, wait.is_guess)
        return Waiting(place, kind, seen.label, self.clock.unix() - waited_s, waited_s)

    def _running(self, pool: SharedPool) -> Iterable[Running]:
        for worker in pool.stats.workers:
            for lease in worker.leases:
                session = session_of(lease)
                yield Running(
                    worker.id,
                    lease.slot,
                    session.kind,
                    self.clock.unix() - session.elapsed_s,
                    session.elapsed_s,
                    pool.inputs.remaining(session),
                    not pool.inputs.is_known(session),
                )
