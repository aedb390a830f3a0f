"""The state machine of one full-duplex session, the same for all dialects.

Events in, actions out: the machine does no I/O and reads no clock. All times are seconds of one monotonic
clock.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import ClassVar, Final

import msgspec

from antiphon.contract import Reason
from ws_adapter.protocol.core.actions import (
    Note,
    OpenWorkerSession,
    Send,
    TakeSlot,
    closing,
)
from ws_adapter.protocol.core.answer import Answer
from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.config import Catalogue, SessionSetup
from ws_adapter.protocol.core.machine import Action, Place, WithoutDetection, link_trace
from ws_adapter.protocol.core.reading import Reading
from ws_adapter.protocol.core.signals import UNIT_SIGNALS, Failed, GoingAway, Moved, Ready, Signal
from ws_adapter.protocol.core.state import State
from ws_adapter.protocol.duplex.deadlines import Deadlines
from ws_adapter.protocol.duplex.flow import Step, UnitFlow
from ws_adapter.protocol.duplex.saved import SavedDuplex
from ws_adapter.protocol.duplex.vocabulary import (
    Begin,
    Command,
    Diagnose,
    End,
    HoldFrame,
    Input,
    Interrupt,
    Pause,
    Resume,
    Vocabulary,
)
from ws_adapter.protocol.media.reference_voice import NO_VOICE
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import CloseCode, ErrorCode, InvalidUtf8, Refusal, Verdict
from ws_adapter.protocol.wire.limits import (
    LARGE_FRAME,
    LARGEST_DECODED,
    NOTES_PER_MIN,
    Limits,
    RateWindow,
    errors_window,
    events_window,
)
from ws_adapter.protocol.wire.redaction import outline

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SavedDuplex)

_RUNNING: Final = (State.ACTIVE, State.PAUSED)


class DuplexMachine(WithoutDetection):
    """The machine of a full-duplex session. It has one slot, from the opening of the socket to its end.

    `catalogue` returns the served pools, None while no worker is known; `new_token` returns a unique token
    for ids.
    """

    drops_stale: ClassVar = True
    can_be_saved: ClassVar = True

    def __init__(
        self,
        vocabulary: Vocabulary,
        limits: Limits,
        catalogue: Callable[[], Catalogue | None],
        new_token: Callable[[], str],
    ) -> None:
        self.state = State.QUEUED
        self.is_over = False
        self._vocabulary = vocabulary
        self._limits = limits
        self._catalogue = catalogue
        self._new_token = new_token
        self._flow = UnitFlow(limits, new_token)
        self.setup: SessionSetup | None = None
        """The accepted settings, which the worker has or will get."""
        self._voice_bytes = 0
        """The bytes of the voice in the settings, until a worker has it."""
        self._reading = Reading()
        self._has_waited = False
        self._created = False
        self._deadlines = Deadlines(limits)
        self._events = events_window()
        self._errors = errors_window()
        self._notes = RateWindow("notes", NOTES_PER_MIN, 60.0)

    @property
    def is_waiting(self) -> bool:
        return self.state is State.QUEUED

    @property
    def held_bytes(self) -> int:
        """The bytes of input that waits or is at the worker, and of unconfirmed reference audio."""
        if self.is_over:
            return 0
        return self._flow.held_bytes + self._voice_bytes + self._reading.held_bytes

    @property
    def deadline(self) -> float | None:
        """The time at which `tick` is due next; None if no timer runs."""
        if self.is_over:
            return None
        earliest, idle_at = self._deadlines.next_at, self._deadlines.idle_at
        if idle_at is not None and (earliest is None or idle_at < earliest):
            earliest = idle_at
        flow_at = self._flow.deadline if self.state in _RUNNING else None
        return flow_at if flow_at is not None and (earliest is None or flow_at < earliest) else earliest

    @property
    def _is_running(self) -> bool:
        return self.state in _RUNNING

    # ------------------------------------------------------------------------------------- the state

    def save(self, now: float, blobs: Blobs, *, has_journal: bool) -> bytes | None:
        """Return the state; None unless the session is running."""
        is_running = self._is_running and has_journal and self._flow.answers.verdict is None
        if not is_running or self.setup is None:
            return None
        saved = SavedDuplex(
            self.state is State.PAUSED,
            self._vocabulary.saved,
            self.setup,
            self._flow.save(now),
            self._deadlines.save(now),
        )
        return _ENCODER.encode(saved)

    def restore(self, state: bytes, blobs: Saved, now: float) -> list[Action]:
        saved = _DECODER.decode(state)
        self.state = State.PAUSED if saved.is_paused else State.ACTIVE
        self._vocabulary = self._vocabulary.restored(saved.vocabulary)
        self._created, self._has_waited = True, True
        self.setup = saved.setup
        self._flow.restore(saved.flow, now)
        self._deadlines.restore(saved.deadlines, now)
        return []

    # ------------------------------------------------------------------------------------- the queue

    def opened(self, now: float) -> list[Action]:
        return [TakeSlot("")]  # clients name their model once they have a slot

    def queued(self, place: Place) -> list[Action]:
        """Handle a place in the queue; nothing is sent once the session had a slot."""
        if self.state is not State.QUEUED:
            return []
        event = self._vocabulary.queued(place, is_update=self._has_waited)
        self._has_waited = True
        return [Send(event)]

    def granted(self, now: float) -> list[Action]:
        """Handle the attachment to a worker, the first or one that replaces a worker lost early."""
        if self.state is State.QUEUED:
            self.state = State.CONNECTED
            self._deadlines.granted(now)
            told = self._vocabulary.slot_assigned(has_waited=self._has_waited)
            return [*map(Send, told), *(self._configure(self.setup) if self.setup else [])]
        if self.state is State.CONFIGURING and self.setup is not None:
            return [OpenWorkerSession(self.setup)]
        return []

    def refused(self, verdict: Verdict) -> list[Action]:
        """Handle that the session gets no worker."""
        return self.ended(verdict)

    def ended(self, verdict: Verdict) -> list[Action]:
        """End the session with a verdict."""
        return [] if self.is_over else self._conclude(verdict)

    # ------------------------------------------------------------------------------------ the client

    def text_frame(self, frame: bytes, now: float, *, drops_input: bool = False) -> list[Action]:
        """Handle a text frame of the client.

        With `drops_input` there is no room for input: the units of an append are dropped undecoded, and
        pictures are not kept. An opener with reference audio ends a session that has no slot yet.
        """
        if self.is_over:
            return []
        if not self._events.allow(now):
            return self._conclude(self._events.flood)
        size = len(frame)
        if size <= LARGEST_DECODED:
            return self._take(drops_input, size, self._decode(frame, drops_input), now)
        read = partial(self._decode, frame, drops_input)
        return self._reading.offload(size, read, partial(self._take, drops_input, size))

    def _decode(self, frame: bytes, drops_input: bool) -> Command | Refusal | InvalidUtf8:
        """Return the command in a frame, or its error; touch no state of the session."""
        try:
            return self._vocabulary.decode(frame, drops_input=drops_input)
        except (Refusal, InvalidUtf8) as fault:
            return fault

    def _take(
        self, drops_input: bool, size: int, command: Command | Refusal | InvalidUtf8, now: float
    ) -> list[Action]:
        """Carry out a command, or report its error."""
        if self.is_over:
            return []
        match command:
            case InvalidUtf8():
                return self._conclude(errors.NOT_UTF8)
            case Refusal(code=ErrorCode.INVALID_JSON):
                return self._conclude(errors.no_json(command))
            case Refusal():
                return self._refuse(command, now)
        try:
            return self._obey(command, now, drops_input, size)
        except Refusal as refusal:
            return self._refuse(refusal, now, command.input_id if isinstance(command, Input) else None)

    def binary_frame(self, now: float) -> list[Action]:
        """Handle a binary frame of the client."""
        return self.ended(errors.BINARY_FRAME)

    def slow_consumer(self) -> list[Action]:
        """Handle a slow consumer."""
        return self.ended(errors.SLOW)

    def congested(self, is_congested: bool, now: float) -> list[Action]:
        """Handle the start or end of back-pressure: units are run only without it."""
        self._flow.congested = is_congested
        return self._told(self._flow.advance(now), now) if self._is_running else []

    def withdrawn(self, sends: list[Send]) -> list[Action]:
        """Handle the result of `Withdraw`: the dropped events, in the order of sending."""
        actions: list[Action] = []
        for answer, lost in groupby(sends, key=lambda send: send.answer):
            if answer is not None:
                is_continued = not next(lost).is_first
                actions += self._answer(self._flow.answers.interrupted(answer, is_continued))
        return actions

    def disconnected(self) -> None:
        """Handle the lost connection; nothing more can be sent."""
        self.state, self.is_over = State.CLOSED, True

    # ------------------------------------------------------------------------------------ the worker

    def signal(self, signal: Signal, now: float) -> list[Action]:
        """Handle a signal of the worker."""
        if self.is_over:
            return []
        if isinstance(signal, UNIT_SIGNALS):
            steps = self._flow.signal(signal, now)
            return self._told(steps, now) if steps else []
        match signal:
            case Ready():
                return self._begun(signal, now)
            case GoingAway():
                self._deadlines.leaves(now + signal.time_left_s)
            case Moved():
                self._deadlines.leaves(None)
                told: list[Action] = [*map(Send, self._vocabulary.moved(signal.pause_s))]
                return told + self._told(self._flow.signal(signal, now), now)
            case Failed():
                return self._worker_failed(signal.reason, now)
        return []

    def displaced(self) -> None:
        """Handle a worker that lost the session before it began; `granted` follows if another one takes
        it."""
        self._deadlines.leaves(None)

    # ---------------------------------------------------------------------------------------- time

    def tick(self, now: float, others_wait: bool) -> list[Action]:
        """Handle the due timers; `others_wait`: another session queues, so an idle session ends."""
        if self.is_over:
            return []
        verdict = self._deadlines.passed(now, self._vocabulary.opener, others_wait)
        if verdict is not None:
            return self._conclude(verdict)
        return self._told(self._flow.tick(now), now) if self._is_running else []

    def shut_down(self) -> list[Action]:
        """Handle the graceful shutdown: without a slot the client may retry elsewhere, with one its
        session ends."""
        return self.ended(errors.SHUTTING_DOWN if self.is_waiting else errors.SERVER_SHUTDOWN)

    # ------------------------------------------------------------------------------ the state table

    def _obey(self, command: Command, now: float, drops_input: bool, size: int) -> list[Action]:
        match command:
            case End():
                return self._conclude(Verdict(None, "", command.reason, CloseCode.NORMAL))
            case Diagnose():
                return [Note(outline(command.frame))] if self._notes.allow(now) else []
            case Begin():
                return [*self._begin(command, now, drops_input, size), *link_trace(command.trace_context)]
            case Input():
                told = self._input(command, now)
                return told if command.trace_context is None else [*link_trace(command.trace_context), *told]
            case HoldFrame():
                self._demand_input(command)
                if not drops_input:
                    self._flow.hold_frame(command.read())
                return []
            case Pause() | Resume() | Interrupt():
                return self._steer(command, now)

    def _begin(self, command: Begin, now: float, drops_input: bool, size: int) -> list[Action]:
        if self._is_running or self.setup is not None:
            if self._vocabulary.ignores_second_opener and not self._is_running:
                return []
            message = f"{command.name} came before: other settings need a new session"
            raise Refusal(ErrorCode.INVALID_EVENT, message)
        read = partial(_read_setup, command, self._catalogue())
        take = partial(self._set_up, command, drops_input)
        return take(read(), now) if size <= LARGE_FRAME else self._reading.offload(size, read, take)

    def _set_up(
        self, command: Begin, drops_input: bool, setup: SessionSetup | Refusal, now: float
    ) -> list[Action]:
        if self.is_over:
            return []
        if isinstance(setup, Refusal):
            return self._refuse(setup, now)
        self._voice_bytes = setup.voice.size
        self._vocabulary = command.choose()
        if self.state is State.CONNECTED:
            return self._configure(setup)
        if drops_input and setup.voice.size:
            return self._conclude(errors.OVERLOADED)
        self.setup = setup
        return []

    def _configure(self, setup: SessionSetup) -> list[Action]:
        self.state = State.CONFIGURING
        self.setup = setup
        self._deadlines.settings_accepted()
        return [OpenWorkerSession(setup)]

    def _demand_input(self, command: Input | HoldFrame) -> SessionSetup:
        """Return the setup; raise `Refusal` if the session neither takes input now nor holds it."""
        if self.setup is None:
            raise Refusal(ErrorCode.NOT_READY, f"{command.name} before {command.after}")
        if self.state is State.PAUSED:
            raise Refusal(ErrorCode.PAUSED, "Worker is paused")
        return self.setup

    def _input(self, command: Input, now: float) -> list[Action]:
        append = command.read(self._demand_input(command).max_slice_nums)
        if self.state is State.ACTIVE:
            self._deadlines.idle_at = now + self._limits.duplex_idle_s
        return self._told(self._flow.append(append, now), now)

    def _steer(self, command: Pause | Resume | Interrupt, now: float) -> list[Action]:
        if not self._is_running:
            raise Refusal(ErrorCode.NOT_READY, f"{command.name} before the session is ready")
        match command:
            case Pause():
                self.state = State.PAUSED
                self._deadlines.paused(command.seconds, now)
            case Resume() if self.state is State.PAUSED:
                self.state = State.ACTIVE
                self._deadlines.resumed(now)
            case Interrupt():
                self._flow.force_next()
        return [Send(command.told)]

    def _begun(self, ready: Ready, now: float) -> list[Action]:
        if self.state is not State.CONFIGURING or self.setup is None:
            return []
        self.state = State.ACTIVE
        self._created = True
        self._deadlines.idle_at = now + self._limits.duplex_idle_s
        created = Send(self._vocabulary.created(ready, self.setup))
        self.setup, self._voice_bytes = replace(self.setup, voice=NO_VOICE), 0  # the worker has it
        return [created, *self._told(self._flow.begin(ready, now), now)]

    def _worker_failed(self, reason: Reason, now: float) -> list[Action]:
        if reason in errors.CORRECTABLE and self.state is State.CONFIGURING:
            self.state = State.CONNECTED
            self.setup, self._voice_bytes = None, 0
            self._flow = UnitFlow(self._limits, self._new_token)
            self._deadlines.await_settings(now)
            return self._refuse(errors.VERDICTS[reason].refusal(), now)
        return self._conclude(errors.lost(reason, is_going_away=self._deadlines.away_at is not None))

    # ------------------------------------------------------------------------------------- output

    def _told(self, steps: Iterable[Step], now: float) -> list[Action]:
        """Turn steps of the flow into actions, up to the end of the session."""
        actions: list[Action] = []
        for step in steps:
            if not isinstance(step, Answer):
                actions.append(step)
                continue
            if step.failure is not None and not self._errors.allow(now):
                return actions + self._conclude(self._errors.flood)
            actions += self._answer(step)
        verdict = self._flow.answers.verdict
        return actions if verdict is None or self.is_over else actions + self._conclude(verdict)

    def _answer(self, answer: Answer) -> list[Send]:
        events = self._vocabulary.answer(answer)
        if len(events) == 1:
            return [Send(events[0], answer, answer.failure is None)]
        first = 0 if answer.failure is None else 1
        return [Send(event, answer, i == first) for i, event in enumerate(events)]

    def _refuse(self, refusal: Refusal, now: float, input_id: str | None = None) -> list[Action]:
        if not self._errors.allow(now):
            return self._conclude(self._errors.flood)
        return [Send(self._vocabulary.refused(refusal, input_id))]

    # -------------------------------------------------------------------------------------- endings

    def _conclude(self, verdict: Verdict) -> list[Action]:
        self.state, self.is_over = State.CLOSING, True
        told: list[Action] = []
        if verdict.code is not None:
            told.append(Send(self._vocabulary.refused(Refusal(verdict.code, verdict.message), None)))
        if verdict.closed is not None:
            tokens = self._flow.answers.tokens if self._created else None
            told += map(Send, self._vocabulary.concluded(verdict, tokens))
        return [*told, closing(verdict)]


def _read_setup(command: Begin, catalogue: Catalogue | None) -> SessionSetup | Refusal:
    try:
        return command.read(catalogue)
    except Refusal as refusal:
        return refusal
