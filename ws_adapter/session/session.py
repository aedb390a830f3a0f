"""One session: a protocol state machine between a client's socket and a worker, with timers and slots."""

import asyncio
import logging
import sys
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from antiphon.contract import Reason
from ws_adapter.detection.detector import Listener
from ws_adapter.dispatch.base import Need
from ws_adapter.observability.metrics import DISCONNECTED
from ws_adapter.observability.session_telemetry import BackgroundTelemetry, SessionTelemetry
from ws_adapter.process.clock import Timer
from ws_adapter.protocol.core.actions import (
    CancelTranscription,
    CancelUnits,
    CloseSocket,
    Detect,
    HoldInput,
    LeaveSlot,
    LinkTrace,
    Note,
    OpenWorkerSession,
    Respond,
    Rewind,
    Run,
    RunSegment,
    RunTurn,
    RunUnit,
    Send,
    TakeSlot,
    Withdraw,
    closing,
)
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.protocol.core.machine import (
    Action,
    Become,
    Machine,
    Offload,
    Place,
    Transcribe,
)
from ws_adapter.protocol.core.signals import Piece, Prefilled, Ready, Signal, UnitDone
from ws_adapter.protocol.core.transcription import InputTranscript
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import VERDICTS, CloseCode, Verdict
from ws_adapter.protocol.wire.limits import events_window
from ws_adapter.protocol.wire.redaction import where
from ws_adapter.recording.recorder import Recording
from ws_adapter.resume.connection import ResumableConnection
from ws_adapter.session.background import Background
from ws_adapter.session.catalogue import SessionCatalogue
from ws_adapter.session.failover import Failover, SavedFailover
from ws_adapter.session.journal_writer import SessionJournalWriter, TakenSession
from ws_adapter.session.outbox import Bounds, Outbox
from ws_adapter.session.pausable_clock import PausableClock
from ws_adapter.session.services import Services
from ws_adapter.session.slot import Identity, Slot, SlotSource
from ws_adapter.session.socket import ClientSocket
from ws_adapter.web.message import Disconnected, Message
from ws_adapter.worker.session_streams import is_large, prefill_bytes

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 5.0
SLOW_CLOSE_TIMEOUT_S: Final = 1.0

MUCH_BYTES: Final = 2 * 2**20
"""The waiting input of a session, in bytes, above which its input is dropped once the adapter's bound is half
full. It is about a minute of int16 audio, so that backlogs do not block live sessions."""


class Session:
    """One session, from the open socket to its end, after which it holds no resources."""

    def __init__(
        self,
        identity: Identity,
        socket: ClientSocket,
        machine: Machine,
        services: Services,
        telemetry: SessionTelemetry,
        catalogue: SessionCatalogue,
        clock: PausableClock,
        recording: Recording | None = None,
        taken: TakenSession | None = None,
    ) -> None:
        """`catalogue` is shared with `machine`; this session sets the pool of the slot in it. `clock` is
        shared with `telemetry`, and pauses while there is no connection. `taken` is a session of another
        adapter to continue."""
        options, load = services.options, services.load
        self._identity = identity
        self._socket = socket
        self._resumable = socket if isinstance(socket, ResumableConnection) else None
        """The socket, if the session can be resumed over another connection."""
        self._machine = machine
        self._services = services
        self._telemetry = telemetry
        self._catalogue = catalogue
        self._recording = recording
        self._clock = clock
        self._load = load
        self._held = 0
        """The bytes of input that are counted in the load."""
        self._actions: deque[Action] = deque()
        """The pending actions, in order."""
        self._is_performing = False
        self._source = SlotSource(identity, services, telemetry)
        identity.meter.on_spent = partial(self.end, errors.QUOTA_SPENT)
        self._worker: str | None = None
        self._taken = taken
        journals, resumable = services.shared_journals, self._resumable
        is_saved = journals is not None and resumable is not None and machine.can_be_saved
        # An event may be sent only after the journal has its cause.
        at_once = _never if is_saved else socket.write_text
        if recording is not None and not is_saved:
            at_once = partial(self._write_text, recording)
        self._outbox = Outbox(
            socket.send_text if recording is None else partial(self._send, recording),
            socket.buffered,
            clock,
            load,
            Bounds(options.outbox_audio_s, options.outbox_bytes_of(identity.kind), options.slow_consumer_s),
            self._on_congested,
            self._on_stalled,
            at_once,
            resumable.until_attached if resumable is not None else None,
        )
        self._journal_writer: SessionJournalWriter | None = None
        """The writer of its journal in Redis; None without such a journal."""
        if journals is not None and resumable is not None and is_saved:
            self._journal_writer = SessionJournalWriter(
                journals, resumable, self._outbox, clock, identity.label, self, is_taken=taken is not None
            )
        self._reading: asyncio.Task[None] | None = None
        """The task that reads a large message off the event loop; later messages wait."""
        self._pace = events_window() if identity.kind is not Kind.TRANSCRIPTION else None
        """The rate limit of messages; None for transcription, which bounds its audio."""
        self._is_full = False
        """Whether the machine has stopped reading for now."""
        self._is_holding = False
        """Whether a message waits to be handled; later ones wait in the socket."""
        self._room = asyncio.Event()
        """Set when the session may be able to read another message."""
        self._held_until = float("-inf")
        """The time at which a message last waited for its turn."""
        self._sending: asyncio.Task[None] | None = None
        """The task that serialises and sends the newest unit, after earlier ones."""
        self._listener: Listener | None = None
        """The speech detection of the machine, from its first `Detect` on."""
        self._background: Background | None = None
        """The background transcription of the machine, from its first request on."""
        self._slot: Slot | None = None
        """The slot of the machine, or the one that it queues for."""
        self._slots: list[Slot] = []
        """The present slot and those that are being cleaned, in order; the newest is last."""
        self._timer: Timer | None = None
        self._timer_at: float | None = None
        self._closing: asyncio.Task[None] | None = None
        self._close_timeout_s = CLOSE_TIMEOUT_S
        self._end = DISCONNECTED

    @property
    def is_waiting(self) -> bool:
        return self._machine.is_waiting

    @property
    def has_asked(self) -> bool:
        """Whether it has asked for a slot, or is over."""
        return bool(self._slots) or self._machine.is_over

    @property
    def end_reason(self) -> str:
        """The reason why the session ended."""
        return self._end

    async def run(self) -> None:
        """Run the session; return when the socket is closed and every slot is clean again."""
        if self._recording is not None:
            logger.info("the session is recorded", extra={"recording": self._recording.recording_id})
        writer = asyncio.create_task(self._write())
        try:
            if self._resumable is not None:
                self._resumable.own(self)
            if self._taken is None:
                self._perform(self._machine.opened(self._clock.now()))
            else:
                self._continue(self._taken)
            self._socket.when_flooding(self.end)
            self._socket.when_text(self._take_text)
            # In its own task: a frame then wakes only the reader, not the tasks that await the session's end.
            await asyncio.create_task(self._read())
        except Exception:
            self.failed()
            await self._socket.wait_closed()
        finally:
            self._machine.disconnected()
            if self._journal_writer is not None:
                self._journal_writer.close()
            if self._listener is not None:
                self._listener.close()
            if self._background is not None:
                self._background.close()
            self._count_input()
            self._arm(self._machine.deadline)
            self._leave_slot()
            writer.cancel()
            tasks = [writer, *(task for task in (self._closing, self._reading) if task is not None)]
            await asyncio.gather(*tasks, *(slot.over() for slot in self._slots), return_exceptions=True)
            if self._background is not None:
                await self._background.over()
            self._outbox.end()
            if self._recording is not None:
                self._recording.end(self._end, self._worker)
            # Reference counting frees the session: a garbage collection of all sessions stops the event loop.
            self._slot = None
            self._slots.clear()
            self._identity.meter.on_spent = _ignore_quota

    def shut_down(self) -> None:
        """Handle the graceful shutdown of the server."""
        self._perform(self._machine.shut_down())
        self._give_up_client()

    def end(self, verdict: Verdict) -> None:
        """End the session with a verdict."""
        self._perform(self._machine.ended(verdict))
        self._give_up_client()

    def hand_over(self) -> bool:
        """Offer the session to other adapters, where its client may resume it; return False if impossible."""
        if self._journal_writer is None or not self._journal_writer.hand_over():
            return False
        self._leave_for(CloseSocket(CloseCode.SERVICE_RESTART, errors.SHUTDOWN))
        return True

    def taken_elsewhere(self) -> None:
        """Handle that another adapter has taken the session over, because this adapter seemed dead."""
        logger.warning("session lost: another adapter has taken it over")
        self._leave_for(CloseSocket(CloseCode.RESUMED_ELSEWHERE, "resumed_elsewhere"))

    def _leave_for(self, close: CloseSocket) -> None:
        """Close the socket without a last event: the session continues at another adapter."""
        self._machine.disconnected()
        self._outbox.clear()
        self._perform([close])
        self._give_up_client()

    def _give_up_client(self) -> None:
        """Stop waiting for a client that lost its connection."""
        if self._clock.is_paused:
            self._socket.abort()

    def _continue(self, taken: TakenSession) -> None:
        """Continue a session of another adapter; end it if that fails."""
        try:
            self._move_here(taken)
        except Exception as error:  # the state in Redis may be arbitrary
            logger.warning("takeover failed: %.200r", error)
            self.end(errors.RESUME_FAILED)
            if self._closing is None:  # the session was over before its adapter died
                self._perform([closing(errors.RESUME_FAILED)])

    def _move_here(self, taken: TakenSession) -> None:
        saved, socket = taken.saved, self._resumable
        if socket is None:
            raise ValueError("no session is resumed here")
        failover = self._failover_of(taken, saved.failover) if saved.failover is not None else None
        try:
            actions = self._machine.restore(saved.machine, taken.blobs, self._clock.now())
        except BaseException:
            if failover is not None:
                failover.journal.close()
            raise
        match actions:
            case [Become(machine=machine), *actions]:
                self._machine = machine
        if failover is not None and saved.failover is not None:
            need = Need(saved.failover.mode, failover.journal.model, self._catalogue.models)
            self._slot = Slot(self._source, self, need, displaced=(failover, saved.failover))
            self._slots.append(self._slot)
        socket.take_over(taken.last_event, taken.nonces, saved.received, taken.events)
        self._perform(actions)

    def _failover_of(self, taken: TakenSession, saved: SavedFailover) -> Failover:
        """Return the failover of the session to a worker that continues from the journal of its last one."""
        services = self._services
        journal = services.journals.open(saved.journal.kind)
        if journal is None:
            raise ValueError("no journal is kept here")
        failover, now = Failover(journal), services.clock.now()
        try:
            journal.restore(saved.journal, taken.config, taken.units)
            if failover.restore(saved, now, was_handed_over=taken.was_handed_over) is not None:
                raise ValueError("the session may be the cause of the lost adapters and workers")
        except BaseException:
            journal.close()
            raise
        return failover

    # ------------------------------------------------------------------------------- actions

    def _perform(self, actions: list[Action]) -> None:
        """Carry out actions, after those that are pending."""
        due = self._actions
        due.extend(actions)
        if self._is_performing:
            return
        self._is_performing = True
        has_changed = self._journal_writer is not None and any(type(action) is not Detect for action in due)
        try:
            while due:
                self._do(due.popleft())
        finally:
            self._is_performing = False
            due.clear()
        if has_changed and self._journal_writer is not None:
            self._journal_writer.commit()
        self._count_input()
        if self._is_holding:
            self._room.set()
        deadline = self._machine.deadline
        if deadline is None or self._timer_at is None or deadline < self._timer_at:
            self._arm(deadline)

    def _do(self, action: Action) -> None:
        match action:
            case Send():
                self._tell(action)
            case RunUnit() | RunTurn() | RunSegment() if self._slot is not None and self._slot.takes_units:
                self._run(action, self._slot)
            case TakeSlot():
                self._take_slot(action.model)
            case LeaveSlot():
                self._leave_slot()
            case CancelUnits() if self._slot is not None:
                self._slot.cancel(action.unit)
            case Rewind() if self._slot is not None:
                self._slot.rewind(action.unit, action.heard_samples)
            case OpenWorkerSession() if self._slot is not None:
                if self._catalogue.allows(action.setup):
                    self._slot.open(action.setup)
                else:
                    self.end(errors.NOT_ALLOWED)
            case Become():
                self._machine = action.machine
            case HoldInput():
                self._is_full = action.is_held
            case Detect():
                self._detect(action)
            case Transcribe() | CancelTranscription():
                self._transcribe(action)
            case Withdraw():
                taken = self._outbox.withdraw(action.response_id)
                self._perform(self._machine.withdrawn(taken))
            case Note():
                self._telemetry.noted(action.text)
            case LinkTrace():
                self._telemetry.client_context(action.traceparent, action.tracestate)
            case Respond():
                self._socket.begin_answer(action)
            case CloseSocket():
                self._end = action.reason
                self._leave_slot()
                if self._background is not None:
                    self._background.close()
                self._closing = asyncio.create_task(self._close(action, self._close_timeout_s))

    def _run(self, run: Run, slot: Slot) -> None:
        """Give a unit to the worker; serialise large units off the event loop."""
        traceparent = self._telemetry.units.ran(run)
        if self._sending is None and not is_large(run):
            slot.run(run, traceparent)
        else:
            self._sending = asyncio.create_task(self._send_large(self._sending, run, slot, traceparent))

    async def _send_large(
        self, before: asyncio.Task[None] | None, run: Run, slot: Slot, traceparent: str
    ) -> None:
        """Serialise a unit on a thread and send it, after the earlier units."""
        try:
            if before is not None:
                await before
            message = await self._services.readers.do(lambda: prefill_bytes(run, traceparent), has_slot=True)
            if self._slot is slot:
                slot.run(run, traceparent, message)
        except Exception:
            self.failed()
        finally:
            if self._sending is asyncio.current_task():
                self._sending = None
                if self._journal_writer is not None:
                    self._journal_writer.commit()

    def _detect(self, detect: Detect) -> None:
        if self._listener is None:
            self._listener = self._services.detector.listen(self._detected, self.failed)
        self._listener.give(detect.samples)

    def _detected(self, scores: Sequence[float]) -> None:
        self._perform(self._machine.detected(scores, self._clock.now()))

    def _transcribe(self, action: Transcribe | CancelTranscription) -> None:
        if self._background is None:
            telemetry = BackgroundTelemetry(self._telemetry)
            self._background = Background(
                self._identity, self._services, telemetry, self._catalogue, self._transcribed
            )
        self._background.do(action)

    def _transcribed(self, item: Transcribe, news: InputTranscript) -> None:
        if not self._machine.is_over:
            self._perform(item.tell(news, self._clock.now()))

    def _count_input(self) -> None:
        """Update the count of this session's input bytes in the load."""
        held = self._machine.held_bytes
        if self._listener is not None:
            held += self._listener.held_bytes
        if self._background is not None and not self._machine.is_over:
            held += self._background.held_bytes
        self._load.inflight_bytes += held - self._held
        self._held = held

    def _tell(self, send: Send) -> None:
        event = send.event
        if event.tells_trouble:
            event.identify(self._identity.trace_id)
            if (fault := event.fault) is not None:
                self._telemetry.error_sent(fault)
        elif send.answer is not None:
            self._telemetry.units.answered(send.answer)
        elif event.pauses is not None:
            self._telemetry.paused(event.pauses)
        elif event.offers_resume and self._resumable is not None:
            event.offer(self._resumable.offer())
        self._outbox.put(send)

    def _arm(self, deadline: float | None) -> None:
        """Set the timer to the machine's next deadline.

        `_perform` leaves the timer alone if the deadline only moves later; it then fires too early once.
        """
        if self._timer is not None:
            self._timer.cancel()
        if self._clock.is_paused:
            deadline = None
        self._timer_at = deadline
        self._timer = self._clock.call_at(deadline, self._tick) if deadline is not None else None

    def _tick(self) -> None:
        self._timer = self._timer_at = None
        try:
            self._perform(self._machine.tick(self._clock.now(), self.others_wait()))
        except Exception:
            self.failed()

    def others_wait(self) -> bool:
        """Return whether another session waits for a slot such as this session holds."""
        pool = self._slot.pool if self._slot is not None and not self._slot.is_moving else None
        return pool is not None and self._services.dispatcher.is_contended(pool)

    def failed(self) -> None:
        """End this session alone because of a defect, whose exception is being handled."""
        error = sys.exception()
        logger.error("session failed", extra={"exception": where(error) if error else None})
        self._perform(self._machine.ended(VERDICTS[Reason.WORKER_LOST]))

    # -------------------------------------------------------------------------------- the socket

    def detached(self) -> None:
        """Pause the session while its client may reconnect: its clock stops, and no unit is run."""
        self._clock.pause()
        self._arm(None)
        self._outbox.set_detached(True)
        if not self._machine.is_over:
            self._congest()

    def resumed(self) -> None:
        """Handle the client's return."""
        self._clock.go_on()
        self._outbox.set_detached(False)
        if not self._machine.is_over:
            self._congest()
        self._arm(self._machine.deadline)

    def offered(self) -> None:
        """Handle a new token: write its nonce to the journal, so that other adapters accept it."""
        if self._journal_writer is not None:
            self._journal_writer.commit()

    @property
    def machine(self) -> Machine:
        """The protocol state machine."""
        return self._machine

    @property
    def slot(self) -> Slot | None:
        """The slot of the machine, or the one that it queues for."""
        return self._slot

    @property
    def is_settled(self) -> bool:
        """Whether the journal of the slot has all units that were run."""
        return self._sending is None

    @property
    def unread(self) -> int:
        """The number of received messages that are not handled yet."""
        return self._is_holding + (self._reading is not None)

    async def _read(self) -> None:
        while True:
            try:
                message = await self._socket.receive()
            except Disconnected:
                return
            self._is_holding = True
            if self._reading is not None:
                await self._reading
            await self._may_read()
            self._is_holding = False
            self._handle_message(message)
            if self._reading is not None:
                await self._reading

    async def _may_read(self) -> None:
        """Wait until the session may read another message.

        The socket is not read meanwhile, which applies back-pressure to the client.
        """
        while (at := self._next_read_at()) is not None:
            self._socket.hold(True)
            self._room.clear()
            timer = self._clock.call_at(at, self._room.set) if at < float("inf") else None
            try:
                await self._room.wait()
            finally:
                if timer is not None:
                    timer.cancel()
                self._socket.hold(False)
                self._held_until = self._clock.now()

    def _next_read_at(self) -> float | None:
        """Return the time when another message may be read, infinity if unknown; None for now."""
        if self._machine.is_over:
            return None
        if self._is_full:
            return float("inf")
        at = self._pace.next_at if self._pace is not None else float("-inf")
        return at if at > self._clock.now() else None

    def _take_text(self, text: bytes) -> bool:
        """Handle a new message; return False if an earlier one is not handled, or this one has to wait."""
        if self._reading is not None or self._is_holding or self._next_read_at() is not None:
            return False
        if self._resumable is not None:
            self._resumable.received += 1
        try:
            self._handle_message(Message(True, text, 0.0, True))
        except Exception:
            self.failed()
        return True

    def _handle_message(self, message: Message) -> None:
        machine = self._machine
        drops = self._has_no_room() or (machine.drops_stale and self._is_late(message))
        is_lost = drops or machine.is_over
        now = self._clock.now()
        if self._pace is not None:
            self._pace.allow(now)
        if message.is_text:
            actions = machine.text_frame(message.data, now, drops_input=drops)
        else:
            actions = machine.binary_frame(now)
        if Offload in map(type, actions):
            self._reading = asyncio.create_task(self._read_offloaded(actions, message, is_lost))
        else:
            self._finish(actions, message, is_lost)
        if self._journal_writer is not None and self._resumable is not None and self._resumable.is_confirmed:
            self._journal_writer.commit()  # the previous token is no longer valid

    async def _read_offloaded(self, actions: list[Action], message: Message, is_lost: bool) -> None:
        try:
            while offload := next((action for action in actions if isinstance(action, Offload)), None):
                self._perform([action for action in actions if action is not offload])
                then = await self._services.readers.do(offload.work, has_slot=self._has_worker)
                actions = then(self._clock.now())
            self._finish(actions, message, is_lost)
        except Exception:
            self.failed()
        finally:
            self._reading = None

    def _finish(self, actions: list[Action], message: Message, is_lost: bool) -> None:
        if self._recording is not None:
            is_refused = is_lost or any(map(_is_refusal, actions))
            self._recording.up(message.data, message.is_text, is_refused=is_refused)
        self._perform(actions)
        if self._journal_writer is not None:
            self._journal_writer.commit_soon()

    def _has_no_room(self) -> bool:
        if self._load.inflight_bytes < self._load.half_bytes:
            return False
        return self._load.is_full or self.is_waiting or self._machine.held_bytes > MUCH_BYTES

    def _is_late(self, message: Message) -> bool:
        """Return whether the output for a message would be too late."""
        if self._load.is_late:
            return True
        if message.is_newest or message.age_s <= self._services.options.max_lag_s:
            return False
        # A message that waited because the adapter did not read is not late.
        return self._clock.now() - self._held_until >= message.age_s

    async def _send(self, recording: Recording, *frame: bytes) -> None:
        recording.down(b"".join(frame))
        await self._socket.send_text(*frame)

    def _write_text(self, recording: Recording, *frame: bytes) -> bool:
        was_sent = self._socket.write_text(*frame)
        if was_sent:
            recording.down(b"".join(frame))
        return was_sent

    async def _write(self) -> None:
        try:
            await self._outbox.run()
        except Disconnected:
            pass
        except Exception as error:
            logger.error("sending failed: connection aborted", extra={"exception": where(error)})
            self._socket.abort()

    async def _close(self, action: CloseSocket, patience_s: float) -> None:
        """Send the remaining events, then close; abort after `patience_s` seconds.

        A client that has lost its connection gets the events if it resumes the session in time.
        """
        if self._resumable is not None:
            self._resumable.ends_with_an_answer = action.reason == errors.DONE
        while True:
            try:
                if self._resumable is not None:
                    await self._resumable.until_attached()
                async with asyncio.timeout(patience_s):
                    await self._outbox.flushed()
                    await self._socket.close(action.code, action.reason)
                return
            except Disconnected:
                return
            except TimeoutError:
                if not self._clock.is_paused:
                    self._socket.abort()
                    return

    def _on_congested(self, is_congested: bool) -> None:
        if is_congested:
            self._telemetry.congested()
        self._congest()

    def _congest(self) -> None:
        """Update the machine's view of whether units may run."""
        is_congested = self._outbox.is_congested or self._clock.is_paused
        try:
            self._perform(self._machine.congested(is_congested, self._clock.now()))
        except Exception:
            self.failed()

    def _on_stalled(self) -> None:
        actions = self._machine.slow_consumer()
        if not actions:
            return
        self._telemetry.stalled()
        self._outbox.clear()
        self._close_timeout_s = SLOW_CLOSE_TIMEOUT_S
        self._perform(actions)

    # ---------------------------------------------------------------------------------- the slot

    @property
    def _has_worker(self) -> bool:
        return self._slot is not None and self._slot.takes_units

    def _take_slot(self, model: str) -> None:
        need = Need(self._catalogue.mode, model, self._catalogue.models)
        self._slots = [slot for slot in self._slots if not slot.is_over]
        self._slot = Slot(self._source, self, need, self._slots[-1] if self._slots else None)
        self._slots.append(self._slot)

    def _leave_slot(self) -> None:
        slot, self._slot = self._slot, None
        self._catalogue.pool = None
        if self._sending is not None:
            self._sending.cancel()
        if slot is not None:
            slot.give_up()

    def queued(self, place: Place) -> None:
        self._perform(self._machine.queued(place))

    def attached(self, worker: str) -> None:
        self._worker = worker
        self._catalogue.pool = self._slot.pool if self._slot is not None else None
        self._perform(self._machine.granted(self._clock.now()))

    def reattached(self, worker: str) -> None:
        self._worker = worker
        self._catalogue.pool = self._slot.pool if self._slot is not None else None

    def displaced(self) -> None:
        self._catalogue.pool = None
        self._machine.displaced()

    def refused(self, verdict: Verdict) -> None:
        self._slot = self._catalogue.pool = None
        self._perform(self._machine.refused(verdict))

    def said(self, *signals: Signal) -> None:
        now, units = self._clock.now(), self._telemetry.units
        actions: list[Action] = []
        has_changed, done = False, None
        self._identity.meter.count_signals(*signals)
        for signal in signals:
            if isinstance(signal, Ready) and self._slot is not None:
                self._slot.began()
            told = self._machine.signal(signal, now)
            actions += told
            if isinstance(signal, Piece):
                units.said(signal, was_sent=bool(told))
            elif isinstance(signal, UnitDone):
                units.ends(signal)
                has_changed, done = True, signal
            elif not isinstance(signal, Prefilled):
                has_changed = True
            if told and LeaveSlot in map(type, told):
                break  # the remaining signals are of a slot that was given up
        # A part of a unit that causes no action changes nothing else.
        if actions or has_changed:
            self._perform(actions)
        if done is not None:
            units.ended(done, self._outbox.audio_s)


def _never(*parts: bytes) -> bool:
    """Return False: no event is sent at once."""
    return False


def _is_refusal(action: Action) -> bool:
    """Return whether an action rejects an event of the client; reports of failed units have an answer."""
    return isinstance(action, Send) and action.answer is None and action.event.fault is not None


def _ignore_quota() -> None:
    """Do nothing: the session is over."""
