"""One conversation: a dialect between a public socket and a worker, with its clocks and its slot."""

import asyncio
import logging
from typing import Final

from antiphon.semconv import Reason
from ws_adapter.clock import Clock, Timer, sleep
from ws_adapter.connection import Disconnected, PublicConnection
from ws_adapter.dialects import errors
from ws_adapter.dialects.actions import (
    Action,
    CancelUnits,
    CloseSocket,
    Note,
    OpenWorkerSession,
    RunUnit,
    Send,
    Withdraw,
)
from ws_adapter.dialects.errors import DEFECTS, VERDICTS, Verdict
from ws_adapter.dialects.machine import DuplexMachine, State
from ws_adapter.dialects.vocabulary import Place
from ws_adapter.dialects.worker import Failed, Piece, Prefilled, Ready, Signal
from ws_adapter.dispatch.base import POOL, Dispatcher, Kind, Lease
from ws_adapter.errors import AttachFailed, DispatcherUnavailable, QueueFull, WaitCancelled, WaitExpired
from ws_adapter.fleet import Fleet
from ws_adapter.load import Load, Share
from ws_adapter.metrics import DISCONNECTED
from ws_adapter.options import AdapterOptions
from ws_adapter.outbox import Outbox
from ws_adapter.recording.recorder import Recording
from ws_adapter.worker_link import WorkerLink

logger = logging.getLogger(__name__)

NEW_LEASES: Final = 3
"""How often a session that lost its worker before it began gets another slot."""

BUSY_RETRIES: Final = 10
BUSY_RETRY_S: Final = 0.5

CLOSE_TIMEOUT_S: Final = 5.0
SLOW_CLOSE_TIMEOUT_S: Final = 1.0

BACKSTOP_S: Final = 60.0
"""How much longer than the public limit a worker lets a session live, should the adapter forget it."""

LONGEST_CALL_S: Final = 86_400.0
"""Deadline of a session's calls when there is no session limit."""

_ELSEWHERE: Final = frozenset(
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
"""A session that fails for these before it began is tried again with a new lease."""

_AGAIN: Final = frozenset({Reason.MODEL_NOT_FOUND, Reason.VOICE_NOT_FOUND})
"""A session that fails for these before it began waits for a better `session.init`, at a worker."""


class Session:
    """Runs one conversation from the open socket to its end, and then owns nothing any more.

    `label` is what those who look at the queue see of it.
    """

    def __init__(
        self,
        socket: PublicConnection,
        session_id: str,
        dialect: DuplexMachine,
        kind: Kind,
        label: str,
        dispatcher: Dispatcher,
        fleet: Fleet,
        clock: Clock,
        options: AdapterOptions,
        load: Load,
        recording: Recording | None = None,
    ) -> None:
        self._socket = socket
        self._session_id = session_id
        self._dialect = dialect
        self._kind = kind
        self._label = label
        self._limit_s = options.session_limits_s[kind]
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._clock = clock
        self._options = options
        self._load = load
        self._share = Share(load)
        self._recording = recording
        self._worker: str | None = None
        self._outbox = Outbox(
            self._send,
            socket.buffered,
            clock,
            max_audio_s=options.outbox_audio_s,
            max_bytes=options.outbox_bytes,
            stall_s=options.slow_consumer_s,
            on_congested=self._on_congested,
            on_stalled=self._on_stalled,
            share=Share(load),
        )
        self._link: WorkerLink | None = None
        self._attaches = 0
        self._began = False
        self._lost: Reason | None = None
        self._timer: Timer | None = None
        self._timer_at: float | None = None
        self._supply: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._patience_s = CLOSE_TIMEOUT_S
        self._end = DISCONNECTED

    @property
    def is_queued(self) -> bool:
        """Whether the session has no slot yet."""
        return self._dialect.state is State.QUEUED

    @property
    def end_reason(self) -> str:
        """Why the session ended."""
        return self._end

    async def run(self) -> None:
        """Returns when the socket is closed and the slot is clean again."""
        logger.info("session %s opened", self._session_id)
        if self._recording is not None:
            logger.info("session %s is recorded as %s", self._session_id, self._recording.recording_id)
        writer = asyncio.create_task(self._write())
        self._supply = asyncio.create_task(self._hold_slots())
        try:
            await self._read()
        except Exception:
            self._fail()
            await self._socket.wait_closed()
        finally:
            self._dialect.disconnected()
            self._share.hold(0)
            self._arm()
            self._give_up_slot()
            tasks = [writer, self._supply, *([self._closing] if self._closing else [])]
            writer.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._recording is not None:
                self._recording.end(self._end, self._worker)
            logger.info("session %s ended: %s", self._session_id, self._end)

    def shut_down(self) -> None:
        """The server ends."""
        self._perform(self._dialect.shut_down())

    def end(self, verdict: Verdict) -> None:
        """The session may not go on."""
        self._perform(self._dialect.refused(verdict))

    # --------------------------------------------------------------------------------- doing

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._outbox.put(action)
                case RunUnit() if self._link is not None:
                    self._link.run(action)
                case CancelUnits() if self._link is not None:
                    self._link.cancel(action.unit)
                case OpenWorkerSession() if self._link is not None:
                    limit_s = self._limit_s
                    self._link.open(action.setup, limit_s + BACKSTOP_S if limit_s else 0.0)
                case Withdraw():
                    taken = self._outbox.withdraw(action.response_id)
                    self._perform(self._dialect.withdrawn(taken))
                case Note():
                    logger.info("session %s says of itself: %s", self._session_id, action.text)
                case CloseSocket():
                    self._end = action.reason
                    self._give_up_slot()
                    self._closing = asyncio.create_task(self._close(action, self._patience_s))
        self._share.hold(self._dialect.held_bytes)
        self._arm()

    def _arm(self) -> None:
        """Keeps one timer, no later than the dialect's next deadline.

        Most deadlines only move on: when the timer runs too early it is set again.
        """
        deadline = self._dialect.deadline
        if deadline is not None and self._timer_at is not None and self._timer_at <= deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._clock.call_at(deadline, self._tick) if deadline is not None else None

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        try:
            self._perform(self._dialect.tick(self._clock.now(), self._dispatcher.is_contended(POOL)))
        except Exception:
            self._fail()

    def _fail(self) -> None:
        """A defect of ours ends this session and nobody else's."""
        logger.exception("session %s failed", self._session_id)
        self._perform(self._dialect.refused(VERDICTS[Reason.WORKER_LOST]))

    # -------------------------------------------------------------------------------- the socket

    async def _read(self) -> None:
        while True:
            try:
                message = await self._socket.receive()
            except Disconnected:
                return
            if self._recording is not None:
                self._recording.up(message.data, message.is_text)
            if message.is_text:
                is_stale = message.age_s > self._options.max_lag_s and not message.is_newest
                load = self._load
                has_no_room = load.is_full or load.is_late or (self.is_queued and load.is_filling)
                drops = is_stale or has_no_room
                self._perform(self._dialect.text_frame(message.data, self._clock.now(), drops_input=drops))
            else:
                self._perform(self._dialect.binary_frame())

    async def _send(self, frame: bytes) -> None:
        if self._recording is not None:
            self._recording.down(frame)
        await self._socket.send_text(frame)

    async def _write(self) -> None:
        try:
            await self._outbox.run()
        except Disconnected:
            pass
        except Exception:
            logger.exception("session %s cannot send", self._session_id)
            self._socket.abort()

    async def _close(self, action: CloseSocket, patience_s: float) -> None:
        """Sends what is left, then closes; a client that takes too long is cut off."""
        try:
            async with asyncio.timeout(patience_s):
                await self._outbox.flushed()
                await self._socket.close(action.code, action.reason)
        except TimeoutError:
            self._socket.abort()

    def _on_congested(self, is_congested: bool) -> None:
        self._perform(self._dialect.congested(is_congested, self._clock.now()))

    def _on_stalled(self) -> None:
        actions = self._dialect.slow_consumer()
        if not actions:
            return
        self._outbox.clear()
        self._patience_s = SLOW_CLOSE_TIMEOUT_S
        self._perform(actions)

    # ---------------------------------------------------------------------------------- the slot

    async def _hold_slots(self) -> None:
        """Holds a slot for as long as the session needs one; a lost one is replaced until it has begun."""
        lost = 0
        again = False
        verdict: Verdict
        try:
            while True:
                try:
                    await self._hold_slot(again)
                    return
                except AttachFailed as failed:
                    again = True
                    reason = failed.reason
                if reason in _ELSEWHERE and lost < NEW_LEASES:
                    lost += 1
                elif reason not in _AGAIN:
                    verdict = VERDICTS[reason] if reason is not Reason.WORKER_LOST else errors.CONNECT_FAILED
                    break
        except QueueFull:
            verdict = VERDICTS[Reason.QUEUE_FULL]
        except WaitExpired:
            verdict = errors.QUEUE_TIMEOUT
        except WaitCancelled:
            verdict = errors.QUEUE_CANCELLED
        except DispatcherUnavailable:
            verdict = errors.NO_WORKER
        except Exception:
            self._fail()
            return
        self._perform(self._dialect.refused(verdict))

    async def _hold_slot(self, again: bool) -> None:
        """One slot, from the queue until it is clean again. Raises `AttachFailed` to ask for another."""
        max_wait = self._options.queue_max_wait_s
        async with self._dispatcher.acquire(
            POOL, self._kind, max_wait, label=self._label, again=again
        ) as ticket:
            async for update in ticket.updates():
                if isinstance(update, Lease):
                    lease = update
                else:
                    place = Place(
                        update.position, update.estimated_wait_s, update.ticket_id, update.queue_length
                    )
                    self._perform(self._dialect.queued(place))
            self._lost = None
            self._worker = f"{lease.worker_id}/{lease.slot}"
            self._link = link = await self._attach(lease)
            self._perform(self._dialect.granted(self._clock.now()))
            await link.ended()
            self._link = None
            if self._lost is not None and not self._dialect.is_over:
                raise AttachFailed(self._lost)

    async def _attach(self, lease: Lease) -> WorkerLink:
        deadline_s = self._limit_s + 2 * BACKSTOP_S if self._limit_s else LONGEST_CALL_S
        for retry in range(BUSY_RETRIES + 1):
            if retry:
                await sleep(self._clock, BUSY_RETRY_S)
            self._attaches += 1
            name = f"{self._session_id}-{self._attaches}"
            try:
                channel = self._fleet.channel(lease.target)
                return await WorkerLink.attach(channel, name, lease.token, self._on_signal, deadline_s)
            except AttachFailed as failed:
                if failed.reason is not Reason.NO_FREE_SLOT:
                    raise
        raise AttachFailed(Reason.NO_FREE_SLOT)

    def _give_up_slot(self) -> None:
        """Leaves the queue, or has the worker clean the slot; `_supply` ends when that is done."""
        if self._link is not None:
            self._link.release()
        elif self._supply is not None and self._supply is not asyncio.current_task():
            self._supply.cancel()

    def _on_signal(self, signal: Signal) -> None:
        if isinstance(signal, Ready):
            self._began = True
        if isinstance(signal, Failed):
            if signal.reason in DEFECTS:
                logger.error("session %s: the worker reports %s", self._session_id, signal.reason)
            if not self._began and signal.reason in _ELSEWHERE | _AGAIN:
                self._lost = signal.reason
                if signal.reason in _ELSEWHERE:
                    self._dialect.displaced()
                    return
        actions = self._dialect.signal(signal, self._clock.now())
        # The others move neither a deadline nor what is held.
        if actions or not isinstance(signal, Prefilled | Piece):
            self._perform(actions)
