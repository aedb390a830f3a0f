"""The slot of a direct caller, from the queue until the worker has cleaned the slot."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from antiphon_service.pools import STABLE
from antiphon_service.semconv import LeaseOutcome, QueueOutcome, SlotState
from ws_adapter.direct.refusals import Refused
from ws_adapter.dispatch.base import (
    ANY_TERMS,
    Dispatcher,
    Lease,
    LeaseTerms,
    Need,
    Priority,
    QueuePlace,
    Share,
)
from ws_adapter.observability.metrics import Metrics
from ws_adapter.process.clock import Clock
from ws_adapter.process.errors import (
    DispatchError,
    DispatcherUnavailable,
    QueueFull,
    QuotaSpent,
    SlotLimit,
    WaitCancelled,
    WaitExpired,
)
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.usage.accounts import Meter
from ws_adapter.worker.registry import Registry

logger = logging.getLogger(__name__)

ATTACH_S: Final = 10.0
"""The seconds for which an unused lease is valid."""

ASK_S: Final = 1.0
"""The interval of polling the worker for the attach and the end of the session, in seconds."""

NEVER_BEGAN: Final = "never_began"
ENDED_AT_WORKER: Final = "ended_at_worker"
"""The end reason of a direct session in the usage log, since the adapter does not know the actual one."""

SILENCE_S: Final = 30.0
"""The seconds without an answer after which the sessions of a worker count as over. It is longer than the
keepalive timeout of a lost connection."""

_OUTCOMES: Final[dict[type[DispatchError], QueueOutcome]] = {
    QueueFull: QueueOutcome.FULL,
    SlotLimit: QueueOutcome.SLOT_LIMIT,
    QuotaSpent: QueueOutcome.QUOTA,
    WaitExpired: QueueOutcome.EXPIRED,
    WaitCancelled: QueueOutcome.GAVE_UP,
    DispatcherUnavailable: QueueOutcome.NO_WORKER,
}


@dataclass(frozen=True)
class Revoked:
    """An update: the lease is no longer valid."""

    reason: str


@dataclass(frozen=True)
class DirectRequest:
    """A direct caller's request for a slot.

    With a `max_wait_s` of 0 the wait is unlimited. `label` names the ticket in views of the queue. The
    adapter sets `terms`, those of the session, and `share`, the slot limit of the caller.
    """

    kind: Kind
    need: Need
    max_wait_s: float
    label: str
    terms: LeaseTerms = ANY_TERMS
    share: Share | None = None
    priority: Priority = Priority.NORMAL


class DirectSlot:
    """A queue place of a direct caller, then its lease for as long as the worker reports it in use.

    A caller that does not read its updates delays no other caller.
    """

    def __init__(
        self,
        demand: DirectRequest,
        dispatcher: Dispatcher,
        registry: Registry,
        metrics: Metrics,
        clock: Clock,
        meter: Meter,
    ) -> None:
        """`meter` counts the usage of the session."""
        self._demand = demand
        self._meter = meter
        self._dispatcher = dispatcher
        self._registry = registry
        self._metrics = metrics
        self._clock = clock
        self._since = self._heard_at = clock.now()
        self._updates: deque[QueuePlace | Lease | Revoked] = deque()
        """Pending updates, at most one of each type; a new queue place replaces the old one."""
        self._lease: Lease | None = None
        self._refused: Refused | None = None
        self._is_settled = False
        self._end = NEVER_BEGAN
        """The end reason of the session, for the usage log."""
        self._news = asyncio.Event()
        self._is_given_up = False
        self._woken = asyncio.Event()
        self.task = asyncio.create_task(self._hold())
        """The task of the wait and of the lease; it ends when the slot is free again."""

    async def updates(self) -> AsyncIterator[QueuePlace | Lease | Revoked]:
        """Yield the newest queue place, then the lease; end when the caller has attached, or after `Revoked`.

        Raises `Refused`.
        """
        while True:
            await self._news.wait()
            self._news.clear()
            while self._updates:
                yield self._updates.popleft()
            if self._refused is not None:
                raise self._refused
            if self._is_settled:
                return

    def give_up(self) -> None:
        """Return the queue place or the lease of a disconnected caller, unless it has attached."""
        self._is_given_up = True
        self._woken.set()
        if self._lease is None:
            self.task.cancel()

    def refuse(self, refused: Refused) -> None:
        """End the wait with this status, unless the lease has been granted."""
        if self._lease is None:
            self._refused = self._refused or refused
            self.task.cancel()

    # --------------------------------------------------------------------------------- holding the lease

    async def _hold(self) -> None:
        outcome = QueueOutcome.GAVE_UP
        try:
            await self._hold_lease()
        except DispatchError as error:
            outcome = _OUTCOMES.get(type(error), outcome)
            self._refused = self._refused or Refused.by_queue(error)
        except Exception:
            logger.exception("direct slot lost: unexpected error")
            self._refused = Refused.by_queue(DispatcherUnavailable("the adapter failed; try again"))
        finally:
            self._is_settled = True
            self._news.set()
            if self._lease is None:
                self._metrics.waited(self._clock.now() - self._since, outcome)
            self._meter.end(self._end)

    async def _hold_lease(self) -> None:
        demand = self._demand
        await self._meter.admit()
        terms = demand.terms
        if self._meter.charge.tenant.quota.seconds_per_day:
            terms = terms._replace(max_duration_s=self._meter.charge.paid_ms / 1000)
        async with self._dispatcher.acquire(
            demand.kind,
            demand.max_wait_s,
            need=demand.need,
            label=demand.label,
            terms=terms,
            share=demand.share,
            priority=demand.priority,
        ) as ticket:
            async for update in ticket.updates():
                if isinstance(update, Lease):
                    self._lease = lease = update
                self._tell(update)
            self._heard_at = self._clock.now()
            held = self._metrics.leases.granted(lease, demand.kind, self._heard_at)
            self._metrics.waited(self._clock.now() - self._since, QueueOutcome.GRANTED)
            outcome, revision = LeaseOutcome.RETURNED, self._registry.revision(lease.target)
            try:
                with self._meter.slot(self._registry.model(lease.target)):
                    if await self._is_attached(lease):
                        held.state, outcome = SlotState.ATTACHED, LeaseOutcome.RELEASED
                        self._is_settled = True
                        self._news.set()
                        self._end = ENDED_AT_WORKER
                        # If this adapter ends before the session, the session may use its whole lease.
                        self._meter.charge.keeps_slice = True
                        await self._until_over(lease)
                        self._meter.charge.keeps_slice = False
                    else:
                        self._tell(Revoked(f"no caller attached within {ATTACH_S:g} s"))
            finally:
                self._metrics.leases.returned(held)
                self._metrics.lease_outcomes[outcome, revision or STABLE] += 1

    def _tell(self, update: QueuePlace | Lease | Revoked) -> None:
        if self._updates and isinstance(self._updates[-1], QueuePlace):
            self._updates.pop()
        self._updates.append(update)
        self._news.set()

    async def _is_attached(self, lease: Lease) -> bool:
        """Return whether the caller attaches within `ATTACH_S`; wait longer while the worker does not
        answer."""
        end = self._clock.now() + ATTACH_S
        while True:
            is_last = self._is_given_up or self._clock.now() >= end
            holds = await self._holds(lease)
            if holds or self._registry.used(lease.target, lease.epoch) is not None:
                return True  # a short session may end between two polls
            if holds is False and is_last:
                return False
            await self._pause(ASK_S if is_last else min(ASK_S, end - self._clock.now()))

    async def _until_over(self, lease: Lease) -> None:
        while await self._holds(lease) is not False:
            await self._pause(ASK_S)

    async def _holds(self, lease: Lease) -> bool | None:
        """Return whether the worker has a session with this lease; None while it does not answer."""
        holds = await self._registry.holds(lease.target, lease.worker_id, lease.epoch)
        if (used := self._registry.used(lease.target, lease.epoch)) is not None:
            self._meter.used_so_far(*used)
        now = self._clock.now()
        if holds is not None:
            self._heard_at = now
        elif now - self._heard_at >= SILENCE_S:
            return False
        return holds

    async def _pause(self, seconds: float) -> None:
        """Wait for `seconds`, or until the caller disconnects."""
        timer = self._clock.call_at(self._clock.now() + seconds, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
        self._woken.clear()
