"""The chat mode of `/v1/realtime`: one turn after another, each with a slot of its own."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Final

import msgspec

from antiphon.contract import Reason
from ws_adapter.protocol.chat.content import Request
from ws_adapter.protocol.chat.realtime_chat_events import ChatCreated, TurnAppend
from ws_adapter.protocol.chat.realtime_chat_input import (
    BEFORE_SETTINGS,
    ReadEvent,
    Settings,
    Update,
    read_event,
)
from ws_adapter.protocol.chat.realtime_chat_slot import ChatSlot
from ws_adapter.protocol.chat.realtime_chat_turn import ChatTurn
from ws_adapter.protocol.chat.reply import failure
from ws_adapter.protocol.chat.saved import SavedRealtimeChat
from ws_adapter.protocol.core import render
from ws_adapter.protocol.core.actions import Send, closing
from ws_adapter.protocol.core.blobs import Blobs, Saved, ago
from ws_adapter.protocol.core.config import Catalogue
from ws_adapter.protocol.core.machine import Action, Place, WithoutDetection, link_trace
from ws_adapter.protocol.core.reading import Reading
from ws_adapter.protocol.core.signals import (
    Failed,
    GoingAway,
    Piece,
    Prefilled,
    Ready,
    Signal,
    UnitDone,
    UnitEnd,
)
from ws_adapter.protocol.core.state import SlotPhase, State
from ws_adapter.protocol.duplex.flow import summed
from ws_adapter.protocol.duplex.realtime import close_reason
from ws_adapter.protocol.duplex.realtime_events import Diagnostic, SessionClose, SessionClosed, SessionInit
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import (
    FAILURES_IN_A_ROW,
    GAVE_UP,
    CloseCode,
    ErrorCode,
    Refusal,
    Verdict,
    timed_out,
)
from ws_adapter.protocol.wire.events import NO_TOKENS, Metrics, SessionQueueDone
from ws_adapter.protocol.wire.limits import (
    LARGE_FRAME,
    Limits,
    errors_window,
    events_window,
    is_due,
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SavedRealtimeChat)

MOST_WAITING: Final = 4
"""The most turns that may wait while another one is answered."""


class RealtimeChat(WithoutDetection):
    """The chat mode of `/v1/realtime`. `new_token` returns a unique token for ids; `recording_id` is that of
    the session's recording, if one is made."""

    drops_stale: ClassVar = False
    can_be_saved: ClassVar = True

    def __init__(
        self,
        session_id: str,
        limits: Limits,
        catalogue: Callable[[], Catalogue | None],
        new_token: Callable[[], str],
        recording_id: str | None = None,
    ) -> None:
        self.state = State.QUEUED
        self._session_id = session_id
        self._limits = limits
        self._catalogue = catalogue
        self._new_token = new_token
        self._recording_id = recording_id
        self._settings: Settings | None = None
        self._slot = ChatSlot()
        self._has_waited = False
        self._turns: deque[ChatTurn] = deque()
        self._reading = Reading()
        self._failures = 0
        self._tokens = NO_TOKENS
        self._init_at: float | None = None
        self._idle_at: float | None = None
        self._events = events_window()
        self._errors = errors_window()

    @property
    def _model(self) -> str:
        """The model that the session has requested, empty for any."""
        return self._settings.setup.model if self._settings is not None else ""

    @property
    def is_over(self) -> bool:
        return self.state in (State.CLOSING, State.CLOSED)

    @property
    def is_waiting(self) -> bool:
        return self.state is State.QUEUED

    @property
    def held_bytes(self) -> int:
        if self.is_over:
            return 0
        voice = self._settings.setup.voice.size if self._settings is not None else 0
        return voice + sum(turn.size for turn in self._turns) + self._reading.held_bytes

    @property
    def deadline(self) -> float | None:
        if self.is_over:
            return None
        due = [at for at in (self._init_at, self._idle_at, self._slot.unused_at) if at is not None]
        return min(due, default=None)

    def opened(self, now: float) -> list[Action]:
        return self._slot.want(self._model)

    # --------------------------------------------------------------------------------- the state

    def save(self, now: float, blobs: Blobs, *, has_journal: bool) -> bytes | None:
        if self.state is not State.ACTIVE or self._settings is None:
            return None
        saved = SavedRealtimeChat(
            blobs.keep(self._settings.saved),
            self._slot.save(has_journal=has_journal),
            tuple(turn.save(now, blobs) for turn in self._turns),
            self._failures,
            self._tokens,
            ago(self._idle_at, now),
            ago(self._slot.unused_at, now),
        )
        return _ENCODER.encode(saved)

    def restore(self, state: bytes, blobs: Saved, now: float) -> list[Action]:
        """Go on from a saved state; end the session if no worker can continue an answer that has begun."""
        saved = _DECODER.decode(state)
        self.state, self._settings = State.ACTIVE, Settings.restored(blobs[saved.settings])
        self._turns = deque(ChatTurn.restored(it, self._session_id, blobs, now) for it in saved.turns)
        self._failures, self._tokens = saved.failures, saved.tokens
        self._idle_at = None if saved.idle_ago is None else now - saved.idle_ago
        if saved.slot is not None:
            self._slot.restore(saved.slot)
            self._slot.unused_at = None if saved.unused_ago is None else now - saved.unused_ago
            return []
        if self._turns and self._turns[0].has_begun:
            return self._conclude(errors.VERDICTS[Reason.WORKER_LOST])
        return self._advance(now) if self._turns else []

    # ---------------------------------------------------------------------------------- the slot

    def queued(self, place: Place) -> list[Action]:
        if self.state not in (State.QUEUED, State.ACTIVE):
            return []
        event = render.queued(place, is_update=self._has_waited)
        self._has_waited = True
        return [Send(event)]

    def granted(self, now: float) -> list[Action]:
        if self.state is State.QUEUED:
            self.state = State.CONNECTED
            self._init_at = now + self._limits.init_timeout_s
            told: list[Action] = [Send(SessionQueueDone())]
            if self._settings is not None:
                told += self._configure()
            return told
        if self.state is State.CONFIGURING:
            return self._open()
        if self.state is State.ACTIVE and self._turns:
            told = [Send(SessionQueueDone())] if self._has_waited else []
            self._has_waited = False
            return [*told, *self._open()]
        return []

    def displaced(self) -> None:
        self._slot.is_going_away = False

    def refused(self, verdict: Verdict) -> list[Action]:
        return self.ended(verdict)

    def signal(self, signal: Signal, now: float) -> list[Action]:
        if self.is_over:
            return []
        match signal:
            case Ready():
                return self._begun(signal, now)
            case Prefilled() if self._turns:
                self._turns[0].prefilled(signal)
            case Piece() if self._turns:
                return self._said(self._turns[0], signal, now)
            case UnitDone() if self._turns:
                return self._done(self._turns[0], signal, now)
            case GoingAway():
                self._slot.is_going_away = True
                if self._slot.phase is SlotPhase.READY:
                    return self._slot.leave()
            case Failed():
                return self._failed(signal.reason, now)
        return []

    def _open(self) -> list[Action]:
        assert self._settings is not None
        turn = self._turns[0] if self.state is State.ACTIVE and self._turns else None
        return self._slot.open(self._settings.setup, turn.request.voice if turn is not None else None)

    def _begun(self, ready: Ready, now: float) -> list[Action]:
        if self._slot.phase is not SlotPhase.OPENING or self._settings is None:
            return []
        self._slot.begun(ready)
        told: list[Action] = []
        if self.state is State.CONFIGURING:
            self.state = State.ACTIVE
            created = ChatCreated(
                session_id=self._session_id,
                mode="turn_based",
                metrics=Metrics(prompt_length=ready.prompt_tokens, n_past_max=ready.context_limit or None),
                usage=ready.tokens,
                unsupported_fields=self._settings.unsupported_by(ready),
                recording_session_id=self._recording_id,
            )
            told = [Send(created)]
        return [*told, *self._advance(now)]

    def _advance(self, now: float) -> list[Action]:
        """Continue with the next turn, or wait for one."""
        if not self._turns:
            self._idle_at = now + self._limits.chat_idle_s
            has_slot = self._slot.phase is SlotPhase.READY
            self._slot.unused_at = now + self._limits.init_timeout_s if has_slot else None
            return []
        self._idle_at = self._slot.unused_at = None
        if self._slot.phase is SlotPhase.NONE:
            self._has_waited = False
            return self._slot.want(self._model)
        return self._slot.run(self._turns[0]) if self._slot.phase is SlotPhase.READY else []

    def _failed(self, reason: Reason, now: float) -> list[Action]:
        if self._slot.phase is SlotPhase.READY:
            return self._slot.leave()  # nothing is lost: the next turn takes another slot
        if reason in errors.CORRECTABLE and self.state is State.CONFIGURING:
            self.state = State.CONNECTED
            self._settings = None
            self._turns.clear()
            self._init_at = now + self._limits.init_timeout_s
            return self._refuse(errors.VERDICTS[reason].refusal(), now)
        if reason in errors.CORRECTABLE and self._turns:
            done = UnitDone(1, UnitEnd.FAILED, 0)
            return self._end_turn(self._turns[0], done, errors.VERDICTS[reason].refusal(), now)
        return self._conclude(errors.lost(reason, is_going_away=self._slot.is_going_away))

    # ---------------------------------------------------------------------------------- the turns

    def _said(self, turn: ChatTurn, piece: Piece, now: float) -> list[Action]:
        try:
            return [Send(event) for event in turn.said(piece)]
        except Refusal as refusal:
            return self._end_turn(turn, UnitDone(1, UnitEnd.FAILED, 0), refusal, now)

    def _done(self, turn: ChatTurn, done: UnitDone, now: float) -> list[Action]:
        return self._end_turn(turn, done, failure(done) if done.end is UnitEnd.FAILED else None, now)

    def _end_turn(self, turn: ChatTurn, done: UnitDone, refusal: Refusal | None, now: float) -> list[Action]:
        """Send the end of the first turn and give its slot back."""
        told: list[Action] = []
        if refusal is not None:
            if not self._errors.allow(now):
                return self._conclude(self._errors.flood)
            told.append(Send(turn.failed(refusal)))
        is_failure = refusal is not None and refusal.code is ErrorCode.INFERENCE_ERROR
        self._failures = self._failures + 1 if is_failure else 0
        self._turns.popleft()
        self._tokens = summed(self._tokens, done.tokens)
        told.append(Send(turn.done(done, now, has_failed=refusal is not None)))
        if self._failures >= FAILURES_IN_A_ROW:
            return [*told, *self._conclude(GAVE_UP)]
        return [*told, *self._slot.leave(), *self._advance(now)]

    # -------------------------------------------------------------------------------- the client

    def text_frame(self, frame: bytes, now: float, *, drops_input: bool = False) -> list[Action]:
        if self.is_over:
            return []
        if not self._events.allow(now):
            return self._conclude(self._events.flood)
        if self._idle_at is not None:
            self._idle_at = now + self._limits.chat_idle_s
        rules = self._settings.rules if self._settings is not None else BEFORE_SETTINGS
        read = partial(read_event, frame, rules, self._model, self._catalogue(), drops_input=drops_input)
        take = partial(self._handle, drops_input)
        if len(frame) > LARGE_FRAME:
            return self._reading.offload(len(frame), read, take)
        return take(read(), now)

    def binary_frame(self, now: float) -> list[Action]:
        return self.ended(errors.BINARY_FRAME)

    def _handle(self, drops_input: bool, read: ReadEvent | Refusal | Verdict, now: float) -> list[Action]:
        if self.is_over:
            return []
        match read:
            case Refusal():
                return self._refuse(read, now)
            case Verdict():
                return self._conclude(read)
        try:
            match read.event:
                case SessionInit() as event if read.settings is not None:
                    return [*self._init(read.settings, drops_input), *link_trace(event.trace_context)]
                case SessionClose() as event:
                    return self._conclude(Verdict(None, "", close_reason(event), CloseCode.NORMAL))
                case Update():
                    message = (
                        "session.update is not accepted in mode=chat: open the session with session.init"
                    )
                    raise Refusal(ErrorCode.INVALID_EVENT, message)
                case TurnAppend() as event if read.request is not None:
                    told = self._append(read.request, read.input_id, now)
                    return [*link_trace(event.trace_context), *told]
        except Refusal as refusal:
            return self._refuse(refusal, now, read.input_id)
        return []

    def _init(self, settings: Settings | Refusal, drops_input: bool) -> list[Action]:
        if self._settings is not None:
            message = "session.init came before: other settings need a new session"
            raise Refusal(ErrorCode.INVALID_EVENT, message)
        if isinstance(settings, Refusal):
            raise settings
        self._settings = settings
        if self.state is State.CONNECTED:
            return self._configure()
        if drops_input and self._settings.setup.voice.size:
            return self._conclude(errors.OVERLOADED)
        return []

    def _configure(self) -> list[Action]:
        self.state = State.CONFIGURING
        self._init_at = None
        return self._open()

    def _append(self, request: Request | Refusal, input_id: str | None, now: float) -> list[Action]:
        if self._settings is None:
            raise Refusal(ErrorCode.NOT_READY, "input.append before session.init")
        if len(self._turns) > MOST_WAITING:
            message = f"{MOST_WAITING} inputs wait already; send the next one after a response.done"
            raise Refusal(ErrorCode.INVALID_EVENT, message)
        if isinstance(request, Refusal):
            raise request
        ids = (self._session_id, input_id or f"input_{self._new_token()}", f"resp_{self._new_token()}")
        self._turns.append(ChatTurn(request, *ids, now))
        return self._advance(now) if self.state is State.ACTIVE and len(self._turns) == 1 else []

    def congested(self, is_congested: bool, now: float) -> list[Action]:
        """Do nothing: a running answer cannot be paused."""
        return []

    def withdrawn(self, sends: list[Send]) -> list[Action]:
        return []

    def slow_consumer(self) -> list[Action]:
        return self.ended(errors.SLOW)

    def disconnected(self) -> None:
        self.state = State.CLOSED

    # ---------------------------------------------------------------------------------- the rest

    def tick(self, now: float, others_wait: bool) -> list[Action]:
        if self.is_over:
            return []
        if is_due(self._init_at, now):
            text = "no session.init came in time; connect again and send it at once"
            return self._conclude(timed_out("Prepare timeout", self._limits.init_timeout_s, text))
        if is_due(self._idle_at, now):
            text = "no event came for too long; open a new session"
            return self._conclude(timed_out("Idle timeout", self._limits.chat_idle_s, text))
        return self._slot.leave() if is_due(self._slot.unused_at, now) else []

    def ended(self, verdict: Verdict) -> list[Action]:
        return [] if self.is_over else self._conclude(verdict)

    def shut_down(self) -> list[Action]:
        return self.ended(errors.SHUTTING_DOWN if self.is_waiting else errors.SERVER_SHUTDOWN)

    def _refuse(self, refusal: Refusal, now: float, input_id: str | None = None) -> list[Action]:
        if not self._errors.allow(now):
            return self._conclude(self._errors.flood)
        return [Send(render.error(refusal.code, refusal.message, refusal.param, input_id))]

    def _conclude(self, verdict: Verdict) -> list[Action]:
        is_created = self.state is State.ACTIVE
        self.state = State.CLOSING
        told: list[Action] = []
        if verdict.code is not None:
            told.append(Send(render.error(verdict.code, verdict.message)))
        if verdict.closed is not None:
            closed = SessionClosed(
                reason=verdict.closed,
                session_id=self._session_id if is_created else None,
                usage=self._tokens if is_created else None,
                diagnostic=Diagnostic(verdict.message) if verdict.message else None,
            )
            told.append(Send(closed))
        return [*told, closing(verdict)]
