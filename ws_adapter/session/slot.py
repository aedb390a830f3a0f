"""A slot of a session: its wait in the queue, its worker session, its cleaning, and its failover."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from antiphon.contract import METADATA_TRACEPARENT, Reason
from antiphon_service.semconv import FailoverOutcome
from ws_adapter.dispatch.base import ANYTHING, Lease, LeaseTerms, Need, Priority, Ticket
from ws_adapter.observability.session_telemetry import BackgroundTelemetry, SessionTelemetry
from ws_adapter.options import AdapterOptions
from ws_adapter.process.clock import Timer, sleep
from ws_adapter.process.errors import (
    AttachFailed,
    DispatcherUnavailable,
    QueueFull,
    QuotaSpent,
    WaitCancelled,
    WaitExpired,
)
from ws_adapter.protocol.core.actions import Run
from ws_adapter.protocol.core.config import Mode, WorkerSetup
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.core.machine import Place
from ws_adapter.protocol.core.signals import Failed, Finalized, GoingAway, Moved, Ready, Signal
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import CORRECTABLE, DEFECTS, VERDICTS, Verdict
from ws_adapter.session.catalogue import mode_of
from ws_adapter.session.failover import HAND_OVER_S, LONGEST_S, LOSSES, Failover, SavedFailover
from ws_adapter.session.services import Services
from ws_adapter.usage.accounts import Meter
from ws_adapter.worker.convert import session_config
from ws_adapter.worker.journal import Journal, JournalKind
from ws_adapter.worker.session_streams import SessionStreams

logger = logging.getLogger(__name__)

NEW_LEASES: Final = 3
"""The most further slots for a session that loses its worker before it begins."""

BUSY_RETRIES: Final = 10
BUSY_RETRY_S: Final = 0.5

BACKSTOP_S: Final = 60.0
"""The seconds beyond the public limit after which a worker ends a session that the adapter has not ended."""

LONGEST_CALL_S: Final = 86_400.0
"""The deadline in seconds of a session's calls without a session limit."""

NEXT_SLOT_S: Final = 1.0
"""The most seconds that a session waits for the cleaning of its last slot before it queues again."""

_RETRIED: Final = frozenset(
    {
        Reason.WORKER_LOST,
        Reason.LOADING,
        Reason.DRAINING,
        Reason.ATTACH_TIMEOUT,
        Reason.LEASE_MISSING,
        Reason.LEASE_INVALID,
        Reason.STALE_LEASE,
    }
)
"""Reasons for which a session that fails before it began is retried with a new lease."""

_RETRIED_IN_FAILOVER: Final = _RETRIED | LOSSES | {Reason.NO_FREE_SLOT}
"""Reasons for which a moving session is retried: a session that has lost its adapter may still be in the
slot."""

_REFUSALS: Final[dict[type[Exception], Verdict]] = {
    QueueFull: VERDICTS[Reason.QUEUE_FULL],
    WaitExpired: errors.QUEUE_TIMEOUT,
    WaitCancelled: errors.QUEUE_CANCELLED,
    DispatcherUnavailable: errors.NO_WORKER,
}


class SlotHolder(Protocol):
    """The callbacks of a slot. None is called once the slot is given up."""

    def queued(self, place: Place) -> None:
        """Handle a place in the queue."""

    def attached(self, worker: str) -> None:
        """Handle a worker that waits for the config; `worker` is its name and the number of the slot."""

    def displaced(self) -> None:
        """Handle the loss of the worker before it was ready; another slot is requested."""

    def reattached(self, worker: str) -> None:
        """Handle another worker in place of the lost one, before it replays the journal; see `attached`."""

    def refused(self, verdict: Verdict) -> None:
        """Handle that no slot was granted."""

    def said(self, *signals: Signal) -> None:
        """Handle the signals of one message of the worker, in order."""

    def failed(self) -> None:
        """Handle a defect of the adapter, whose exception is being handled."""


class Identity(NamedTuple):
    """The identity of a session: id, kind, label in the queue, trace, tenant of its cached prompts, meter,
    and class in the queue."""

    session_id: str
    kind: Kind
    label: str
    trace_id: str
    tenant: str
    meter: Meter
    priority: Priority = Priority.NORMAL


class SlotSource:
    """The source of one session's slots."""

    def __init__(
        self,
        identity: Identity,
        services: Services,
        telemetry: SessionTelemetry | BackgroundTelemetry,
        *,
        is_background: bool = False,
    ) -> None:
        """With `is_background` a lost slot is not replaced, since the replacement would be at the head of the
        queue."""
        self.is_background = is_background
        limit_s = services.options.session_limits_s[identity.kind]
        self.identity = identity
        self.services = services
        self.telemetry = telemetry
        self.config_limit_s = limit_s + BACKSTOP_S if limit_s else 0.0
        self.call_limit_s = limit_s + 2 * BACKSTOP_S if limit_s else LONGEST_CALL_S
        self.terms = LeaseTerms(
            identity.tenant,
            self.config_limit_s or LONGEST_CALL_S,
            _idle_limit_s(identity.kind, services.options),
        )
        self.revision = ""
        """The revision of the session's last worker; empty before the first."""
        self._attaches = 0

    def new_name(self) -> str:
        """Return the session id for the next worker. No worker gets the same id twice."""
        self._attaches += 1
        return f"{self.identity.session_id}-{self._attaches}"


class Slot:
    """A slot of one session, from entering the queue until the slot is clean again.

    `after` is the session's last slot: this one is requested once that is clean, or after `NEXT_SLOT_S`.
    """

    def __init__(
        self,
        source: SlotSource,
        holder: SlotHolder,
        need: Need = ANYTHING,
        after: "Slot | None" = None,
        displaced: "tuple[Failover, SavedFailover] | None" = None,
    ) -> None:
        """`displaced` is the failover state of a session that moves here from another adapter."""
        self.streams: SessionStreams | None = None
        """The session at the worker, while it is attached."""
        self.pool: str | None = None
        """The pool of its last lease."""
        self._need = need
        self._target = ""
        """The address of its worker."""
        self.said = self._said_early
        """The present handler of signals."""
        self._source = source
        self._holder = holder
        self._telemetry = source.telemetry.slot()
        self._is_given_up = False
        self._began = False
        self._lost: Reason | None = None
        self._leaves_at: float | None = None
        """The end time of the worker, if it began to drain before the session began; else None."""
        self._moves = False
        """Whether this slot is exchanged for one of a worker that serves the setup."""
        self._waits = False
        """Whether the worker that refused the session was full, so that the session queues again."""
        self._failover: Failover | None = None
        """The failover of the session; None without a journal."""
        self._mode: Mode | None = None
        """The mode at the worker, once the session is configured."""
        self._drains = False
        """Whether the worker is draining."""
        self._timer: Timer | None = None
        """The time limit of leaving a draining worker, or of a failover."""
        self._unwatch: Callable[[], object] = lambda: None
        if displaced is not None:
            self._continue(*displaced)
        self._task = asyncio.create_task(self._hold(after))

    @property
    def is_over(self) -> bool:
        """Whether the slot is clean and given back."""
        return self._task.done()

    async def over(self) -> None:
        """Wait until the slot is clean and given back."""
        await asyncio.wait({self._task})

    def give_up(self) -> None:
        """Leave the queue, or release the slot, which its worker then cleans."""
        self._is_given_up = True
        if self._failover is not None and self._failover.is_moving:
            self._report(FailoverOutcome.LEFT)
            self._telemetry.given_up()
        self._forget_journal()
        if self.streams is not None:
            self._telemetry.given_up()
            self.streams.release()
        elif self._task is not asyncio.current_task():
            self._task.cancel()

    def open(self, setup: WorkerSetup) -> None:
        """Configure the session at the worker, or at another worker if only another one serves it.

        In the latter case the session waits at the end of the queue of the other pool.
        """
        registry = self._source.services.registry
        if self.streams is None:
            return
        need = Need(mode_of(setup), setup.model, self._need.models)
        if registry.serves(self._target, need.mode, need.model) or not registry.is_served(*need):
            self._mode = need.mode
            self._configure(setup, self.streams)
            return
        self._need, self._lost, self._moves = need, Reason.MODE_UNSUPPORTED, True
        self._holder.displaced()
        self.streams.release()

    def _configure(self, setup: WorkerSetup, streams: SessionStreams) -> None:
        source, services = self._source, self._source.services
        self._forget_journal()
        can_move = not source.is_background and services.registry.may_move(self._target, self._mode)
        journal = services.journals.open(JournalKind.of(setup)) if can_move else None
        if journal is None:
            streams.open(setup, source.config_limit_s)
            return
        self._failover = Failover(journal)
        streams.open_with(journal.set_config(session_config(setup, source.config_limit_s)))

    # ---------------------------------------------------------------------------------------- units

    @property
    def is_moving(self) -> bool:
        """Whether the session has lost its worker, and continues at another one."""
        return self._failover is not None and self._failover.is_moving

    @property
    def takes_units(self) -> bool:
        """Whether units may be run, by the present worker or the next one."""
        return self.streams is not None or self.is_moving

    def run(self, run: Run, traceparent: str = "", prefill: bytes | None = None) -> None:
        if self._failover is not None:
            self._failover.run(self.streams, run, traceparent, prefill)
        elif self.streams is not None:
            self.streams.run(run, traceparent, prefill)

    def cancel(self, unit: int) -> None:
        if self._failover is not None:
            self._failover.cancel(self.streams, unit)
        elif self.streams is not None:
            self.streams.cancel(unit)

    def rewind(self, unit: int, heard_samples: int | None) -> None:
        if self._failover is not None:
            self._failover.rewind(self.streams, unit, heard_samples)
        elif self.streams is not None:
            self.streams.rewind(unit, heard_samples)

    # -------------------------------------------------------------------------------- holding a slot

    async def _hold(self, after: "Slot | None") -> None:
        try:
            if after is not None:
                await asyncio.wait({after._task}, timeout=NEXT_SLOT_S)
            verdict = await self._hold_slots()
        except QuotaSpent:
            self._source.identity.meter.on_spent()
            return
        except tuple(_REFUSALS) as refusal:
            if self._began:
                self._abandon_failover(FailoverOutcome.NO_SLOT)
                return
            verdict = _REFUSALS[type(refusal)]
        except Exception:
            self._holder.failed()
            return
        finally:
            self._forget_journal()
            self.said = _ignore_signals  # a bound method would be a reference cycle
        if verdict is not None and not self._is_given_up:
            self._holder.refused(verdict)

    async def _hold_slots(self) -> Verdict | None:
        """Hold slots until the session ends; return the reason if no other slot may be requested."""
        lost = 0
        again: str | None = self.pool  # set for a session of another adapter
        while True:
            try:
                await self._hold_one(again)
                return None
            except AttachFailed as failed:
                reason = failed.reason
            if self._source.is_background:
                return VERDICTS[reason]
            if self._moves:
                # The setup needs another pool: no worker was lost.
                self._moves, again = False, None
                continue
            again = self.pool
            if reason is Reason.NO_FREE_SLOT and self._waits:
                continue
            if self._failover is not None and self._failover.is_moving:
                if (
                    reason in _RETRIED_IN_FAILOVER
                    and (pause_s := self._failover.next_attempt_s()) is not None
                ):
                    if pause_s:
                        await sleep(self._source.services.clock, pause_s)
                    continue
                self._abandon_failover(FailoverOutcome.REFUSED)
                return None
            if reason in _RETRIED and lost < NEW_LEASES:
                lost += 1
            elif reason not in CORRECTABLE:
                return VERDICTS[reason] if reason is not Reason.WORKER_LOST else errors.CONNECT_FAILED

    async def _hold_one(self, again: str | None) -> None:
        """Hold one slot from the queue until it is clean. Raises `AttachFailed` if it was lost."""
        source, telemetry = self._source, self._telemetry
        with telemetry:
            services, identity = source.services, source.identity
            max_wait_s = services.options.queue_max_wait_s
            need = self._need
            if self._failover is not None and self._failover.is_moving:
                max_wait_s, need = LONGEST_S, Need(self._mode, self._failover.journal.model, need.models)
            await identity.meter.admit()
            async with services.dispatcher.acquire(
                identity.kind,
                max_wait_s,
                need=need,
                label=identity.label,
                again=again,
                terms=source.terms,
                priority=identity.priority,
                revision=source.revision,
            ) as ticket:
                lease = await self._wait(ticket)
                self.pool, self._target = lease.pool, lease.target
                model = services.registry.model(lease.target)
                source.revision = services.registry.revision(lease.target)
                telemetry.granted(lease, model, source.revision)
                if self._is_given_up:
                    return
                self._lost = self._leaves_at = None
                with identity.meter.slot("" if source.is_background else model):
                    self.streams = streams = await self._attach(lease)
                    telemetry.attached()
                    name = f"{lease.worker_id}/{lease.slot}"
                    if self._failover is not None and self._failover.is_moving:
                        self._holder.reattached(name)
                        streams.open_with(self._failover.journal.config)
                    else:
                        self._holder.attached(name)
                    await streams.ended()
                self.streams = None
                if self._lost is not None and not self._is_given_up:
                    raise AttachFailed(self._lost)

    async def _wait(self, ticket: Ticket) -> Lease:
        async for update in ticket.updates():
            if isinstance(update, Lease):
                lease = update
            elif not self._is_given_up:
                place = Place(
                    update.position,
                    update.estimated_wait_s,
                    update.ticket_id,
                    update.queue_length,
                    update.estimate_is_guess,
                )
                self._telemetry.moved(place)
                if not self.is_moving:
                    self._holder.queued(place)
        return lease

    async def _attach(self, lease: Lease) -> SessionStreams:
        source = self._source
        for retry in range(BUSY_RETRIES + 1):
            if retry:
                await sleep(source.services.clock, BUSY_RETRY_S)
            try:
                channel = source.services.registry.channel(lease.target, source.identity.kind)
                return await SessionStreams.attach(
                    channel,
                    lease.worker_id,
                    source.new_name(),
                    lease.token,
                    self,
                    source.call_limit_s,
                    self._telemetry.headers(),
                )
            except AttachFailed as failed:
                if failed.reason is not Reason.NO_FREE_SLOT or self._is_short_of_time(lease.target):
                    raise
        # The slot may be held by a session that bypassed the dispatcher, or that is not cleaned up yet.
        self._waits = lease.slot in source.services.registry.occupied(lease.target).slots
        raise AttachFailed(Reason.NO_FREE_SLOT)

    def _is_short_of_time(self, target: str) -> bool:
        """Return whether another session would make units of the worker late; keep the result in `_waits`."""
        self._waits = self._source.services.registry.is_short_of_time(target)
        return self._waits

    def _said_early(self, *signals: Signal) -> None:
        """Handle signals before the session has begun: delay that of a drain, and pass on all others.

        While the session moves, pass on nothing: `Ready` starts the replay, and other signals are dropped.
        """
        first = signals[0]  # a signal that is not about a unit comes alone
        if isinstance(first, GoingAway):
            self._leaves_at = self._source.services.clock.now() + first.time_left_s
        elif self._failover is not None and self._failover.is_moving and self.streams is not None:
            if isinstance(first, Ready):
                self._open_again(self._failover, self.streams)
        else:
            self._holder.said(*signals)

    def began(self) -> None:
        """Note that the worker is ready for units."""
        self._began = True
        self.said = self._holder.said
        self._telemetry.began()
        failover, streams = self._failover, self.streams
        if failover is not None and streams is not None:
            if streams.ready is not None and failover.journal.begin(streams.ready):
                streams.journal = failover.journal
                self._watch()
            else:
                self._forget_journal()
        if self._leaves_at is not None:
            left_s = self._leaves_at - self._source.services.clock.now()
            self.said(GoingAway(max(0.0, left_s)))

    def failed(self, reason: Reason) -> None:
        """Handle a session that its worker ended."""
        if not self._is_repaired(reason):
            self._holder.said(Failed(reason))

    def _is_repaired(self, reason: Reason) -> bool:
        """Replace a lost slot, if possible; return whether the client needs no error."""
        if self._began and self._failover is not None and reason in LOSSES:
            return self._is_moved(reason, self._failover)
        if reason in DEFECTS:
            logger.error("the worker reports a defect of the adapter", extra={"reason": reason})
        if self.is_moving:
            self._abandon_failover(FailoverOutcome.REFUSED)
            return True
        self._telemetry.lost(reason)
        if self._began or reason not in _RETRIED | CORRECTABLE:
            return False
        self._lost = reason
        if reason not in _RETRIED:
            return False
        self._holder.displaced()
        return True

    # -------------------------------------------------------------------------------------- failover

    @property
    def journal(self) -> Journal | None:
        """The journal of a running session; None without one."""
        return self._failover.journal if self._failover is not None and self._began else None

    def save(self) -> SavedFailover | None:
        """Return the state from which another adapter can continue; None if none can."""
        if self._failover is None or self._mode is None or not self._failover.journal.suffices:
            return None
        return self._failover.save(self._mode, self.pool or "", self._source.services.clock.now())

    def _continue(self, failover: Failover, saved: SavedFailover) -> None:
        self._failover, self._mode, self.pool = failover, saved.mode, saved.pool
        self._began = True
        self._set_timer(LONGEST_S, lambda: self._abandon_failover(FailoverOutcome.NO_SLOT))

    def _is_moved(self, reason: Reason, failover: Failover) -> bool:
        """Start a failover, if possible; return whether the session continues at another worker."""
        was_moving, now = failover.is_moving, self._source.services.clock.now()
        outcome = failover.lost(reason, now)
        self._telemetry.lost(reason, keeps_units=outcome is None)
        if outcome is not None:
            self._report(outcome, reason)
            self._forget_journal()
            if reason is Reason.DRAINING:
                self._holder.said(GoingAway(0.0))
            return False
        self._lost = reason
        self.said = self._said_early
        self._unwatch()
        if not was_moving:
            logger.warning("failover: the session moves to another worker", extra={"reason": reason})
            self._set_timer(LONGEST_S, lambda: self._abandon_failover(FailoverOutcome.NO_SLOT))
        return True

    def _said_with_journal(self, *signals: Signal) -> None:
        """Pass signals to the holder; leave a draining worker early, if another one has a free slot.

        If the others are full, the session stays until its worker ends it, and then queues for a slot.
        """
        if isinstance(signals[0], GoingAway):
            self._drain()
            failover = self._failover
            if failover is not None and (
                failover.is_leaving or failover.is_moving or self._has_another(failover)
            ):
                return
        self._holder.said(*signals)
        if self._drains:
            self._drain()

    def _watch(self) -> None:
        """Watch for the drain of the worker."""
        self.said = self._said_with_journal
        self._drains = False
        self._unwatch()
        self._unwatch = self._source.services.registry.watch_drain(self._target, self._drain)

    def _drain(self) -> None:
        """Move to another worker with a free slot, once the draining worker has closed its units."""
        self._drains = True
        failover, services = self._failover, self._source.services
        if failover is None or failover.is_moving or self._is_given_up:
            return
        if not failover.is_leaving:
            has_room = services.dispatcher.has_room(self.pool or "", self._target)
            if not (has_room and self._has_another(failover)):
                return
            failover.is_leaving = True
            self._set_timer(HAND_OVER_S, self._hand_over)
        if failover.is_idle:
            self._hand_over()

    def _has_another(self, failover: Failover) -> bool:
        """Return whether the session can continue at another ready worker, even if that is full."""
        registry, model = self._source.services.registry, failover.journal.model
        return failover.journal.suffices and registry.has_another(self._target, self._mode, model)

    def _hand_over(self) -> None:
        """Leave the worker, and abandon its unanswered units."""
        if self._failover is None or self.streams is None or self._failover.is_moving:
            return
        if not self._failover.journal.suffices:
            self._failover.stay(self.streams)
            return
        self.streams.journal = None
        if self._is_moved(Reason.DRAINING, self._failover):
            self.streams.release()

    def _open_again(self, failover: Failover, streams: SessionStreams) -> None:
        """Replay the journal at another worker, which has opened the session."""
        if streams.ready is None or not failover.journal.begin(streams.ready):
            self._abandon_failover(FailoverOutcome.REFUSED)
            return
        traceparent = dict(self._telemetry.headers()).get(METADATA_TRACEPARENT, "")
        streams.replay(failover.journal, str(traceparent), self._replayed)

    def _replayed(self, is_complete: bool) -> None:
        """Handle the end of the replay: the session continues."""
        failover, streams, services = self._failover, self.streams, self._source.services
        if failover is None or streams is None or self._is_given_up:
            return
        if not is_complete:
            self._abandon_failover(FailoverOutcome.REFUSED)
            return
        self._stop_timer()
        pause_s = services.clock.now() - failover.since
        self._report(FailoverOutcome.CONTINUED)
        closed = failover.go_on(streams)
        self._telemetry.began()
        self._watch()
        self._holder.said(Moved(pause_s))
        for unit in closed:
            self._holder.said(Finalized(unit))
        if self._leaves_at is not None:
            self.said(GoingAway(max(0.0, self._leaves_at - services.clock.now())))

    def _abandon_failover(self, outcome: FailoverOutcome) -> None:
        """Abandon the failover: end the session as if it had no journal."""
        failover = self._failover
        if failover is None or failover.reason is None or self._is_given_up:
            return
        reason = failover.reason
        self._report(outcome)
        self._telemetry.lost(reason)
        self._forget_journal()
        if reason is Reason.DRAINING:
            self._holder.said(GoingAway(0.0))
        self._holder.said(Failed(reason))

    def _report(self, outcome: FailoverOutcome, reason: Reason = Reason.WORKER_LOST) -> None:
        """Report the outcome of a failover to telemetry."""
        failover, telemetry = self._failover, self._source.telemetry
        if failover is not None and isinstance(telemetry, SessionTelemetry):
            paused_s = self._source.services.clock.now() - failover.since if failover.is_moving else 0.0
            units = len(failover.journal.numbers)
            telemetry.failed_over(outcome, failover.reason or reason, paused_s, units)

    def _forget_journal(self) -> None:
        """Close the journal. Harmless when repeated."""
        self._stop_timer()
        self._unwatch()
        self._unwatch = lambda: None
        if self.streams is not None:
            self.streams.journal = None
        if self._failover is not None:
            self._failover.journal.close()
            self._failover = None

    def _set_timer(self, seconds: float, then: Callable[[], None]) -> None:
        self._stop_timer()
        clock = self._source.services.clock
        self._timer = clock.call_at(clock.now() + seconds, then)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _idle_limit_s(kind: Kind, options: AdapterOptions) -> float:
    """Return the idle limit of a session at its worker in seconds, above that of the adapter; 0 for no limit.

    A full-duplex session may be idle while no session waits for its slot, and a Realtime session between
    turns. Workers limit only the length of these sessions.
    """
    match kind:
        case Kind.CHAT:
            return options.chat_idle_s + BACKSTOP_S
        case Kind.TRANSCRIPTION:
            return options.transcription_idle_s + BACKSTOP_S
    return 0.0


def _ignore_signals(*signals: Signal) -> None:
    """Do nothing: the slot is given back."""
