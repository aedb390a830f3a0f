"""The state machine of OpenAI's Realtime on `/v1/realtime?model=`: items, turns and responses.

Events in, actions out; nothing here does I/O or reads a clock. All times are seconds of one monotonic clock.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import msgspec

from antiphon.contract import Reason
from ws_adapter.protocol.core.actions import CloseSocket, Send
from ws_adapter.protocol.core.blobs import Blobs, Saved, ago
from ws_adapter.protocol.core.config import Catalogue
from ws_adapter.protocol.core.machine import Action, Place
from ws_adapter.protocol.core.reading import Reading
from ws_adapter.protocol.core.signals import (
    Failed,
    Finalized,
    GoingAway,
    Moved,
    Piece,
    Prefilled,
    Ready,
    Rewound,
    Signal,
    UnitDone,
)
from ws_adapter.protocol.realtime_ga.answers import Answers
from ws_adapter.protocol.realtime_ga.commands import Commands, DeferredRead
from ws_adapter.protocol.realtime_ga.dialogue import Dialogue
from ws_adapter.protocol.realtime_ga.native import Native
from ws_adapter.protocol.realtime_ga.response import Response
from ws_adapter.protocol.realtime_ga.saved.session import SavedRealtimeGa
from ws_adapter.protocol.realtime_ga.settings import Settings, initial
from ws_adapter.protocol.realtime_ga.wire import events
from ws_adapter.protocol.realtime_ga.wire.client_events import (
    AudioAppend,
    ClientEvent,
    ItemCreate,
    ResponseCreate,
)
from ws_adapter.protocol.realtime_ga.wire.event_factory import EventFactory
from ws_adapter.protocol.realtime_ga.wire.events import Code
from ws_adapter.protocol.realtime_ga.wire.fields import SessionFields
from ws_adapter.protocol.realtime_ga.wire.frames import FRAMES
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied, End, code_of, end_of, model_end, opening_end
from ws_adapter.protocol.realtime_ga.worker_slot import WorkerSlotPhase
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import (
    FAILURES_IN_A_ROW,
    GAVE_UP,
    VERDICTS,
    CloseCode,
    ErrorCode,
    Refusal,
    Verdict,
)
from ws_adapter.protocol.wire.faults import shown
from ws_adapter.protocol.wire.frames import Fault
from ws_adapter.protocol.wire.limits import LARGE_FRAME, Limits, errors_window, events_window, is_due

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SavedRealtimeGa)

LONGEST_S: Final = 10 * 365 * 86_400.0
"""The expiry of a session without a limit, in seconds."""

IDLE_S: Final = 60.0
"""The seconds for which an idle session keeps a slot that others wait for."""

MOST_EARLY: Final = 1000
"""The most events that may come before a session has its slot."""

MOST_EARLY_BYTES: Final = 2**20
"""The most bytes of events that may come before a session has its slot."""


class RealtimeGa:
    """The machine of OpenAI's Realtime. It sends only errors before it has a slot. It gives an idle slot
    back if others wait.

    `model` is that of the URL. `catalogue` returns the served pools, None while no worker is known.
    `new_token` returns random digits for ids. `unix` converts a time of the session's clock to Unix time.
    `given` are initial settings that differ from the defaults; their `model` is ignored.
    """

    drops_stale: ClassVar = False
    can_be_saved: ClassVar = True

    def __init__(
        self,
        session_id: str,
        model: str,
        limits: Limits,
        catalogue: Callable[[], Catalogue | None],
        new_token: Callable[[], str],
        unix: Callable[[float], float],
        given: SessionFields | None = None,
    ) -> None:
        self.is_over = False
        self._session_id = session_id
        self._model = model
        self._limits = limits
        self._catalogue = catalogue
        self._unix = unix
        self._given = given
        self._factory = EventFactory(new_token)
        self._answers = Answers(self._factory, model, limits.realtime_wait_s)
        self._commands = Commands(self._factory, self._answers)
        self._dialogue: Dialogue | None = None
        self._reading = Reading()
        self._limit_at: float | None = None
        self._unused_at: float | None = None
        """The time at which the slot is given back if others wait."""
        self._early: deque[tuple[ClientEvent | Fault, int]] = deque()
        """Events that came before there was a slot, with their lengths: clients do not wait for
        `session.created`."""
        self._early_bytes = 0
        self._events = events_window()
        self._errors = errors_window()

    @property
    def is_waiting(self) -> bool:
        return self._dialogue is None

    @property
    def held_bytes(self) -> int:
        if self.is_over:
            return 0
        if self._dialogue is None:
            return self._early_bytes + self._reading.held_bytes
        held = self._dialogue.buffer.held_bytes + self._answers.held_bytes + self._reading.held_bytes
        return held + (self._native.held_bytes if self._native is not None else 0)

    @property
    def deadline(self) -> float | None:
        if self.is_over:
            return None
        idle_at = self._dialogue.idle_at if self._dialogue is not None else None
        native = self._native
        answers = self._answers
        native_at = native.deadline if native is not None and not native.is_away else None
        times = (
            self._limit_at,
            answers.slot.due_at,
            answers.resumes_at,
            self._unused_at,
            idle_at,
            native_at,
        )
        return min((at for at in times if at is not None), default=None)

    @property
    def _native(self) -> Native | None:
        return self._dialogue.native if self._dialogue is not None else None

    # ------------------------------------------------------------------------------------- the state

    def save(self, now: float, blobs: Blobs, *, has_journal: bool) -> bytes | None:
        """Return the state. Without a journal, None if the model has begun to take turns by itself."""
        dialogue, answers = self._dialogue, self._answers
        is_native = self._native is not None and self._native.has_begun and self._native_has_slot
        if self.is_over or dialogue is None or (is_native and not has_journal):
            return None
        responses = answers.responses(self._native.active if self._native is not None else None)
        is_kept = has_journal and not self._native_has_slot
        ids, told = self._factory.count
        saved = SavedRealtimeGa(
            ids,
            told,
            dialogue.save(responses, now, blobs, has_journal=has_journal and self._native_has_slot),
            answers.save(responses, now, blobs, has_journal=has_journal),
            tuple(it.save(blobs, with_turn=not is_kept or answers.is_waiting(it)) for it in responses),
            ago(self._limit_at, now),
            ago(self._unused_at, now),
        )
        return _ENCODER.encode(saved)

    def restore(self, state: bytes, blobs: Saved, now: float) -> list[Action]:
        saved = _DECODER.decode(state)
        self._factory.go_on(saved.ids, saved.told)
        self._limit_at = None if saved.limit_ago is None else now - saved.limit_ago
        self._unused_at = None if saved.unused_ago is None else now - saved.unused_ago
        made, answers = saved.dialogue, self._answers
        settings = Settings.restored(blobs[made.settings])
        self._model = answers.slot.model = settings.model
        self._dialogue = dialogue = Dialogue(
            self._session_id,
            settings,
            made.expires_at,
            self._factory,
            answers,
            self._catalogue,
            self._limits,
        )
        actions = dialogue.restore(made, blobs, now)
        conversation, factory = dialogue.conversation, self._factory
        try:
            responses = [Response.restored(it, blobs, conversation, factory) for it in saved.responses]
            if dialogue.native is not None and made.native is not None:
                dialogue.native.restore(made.native, responses, now, blobs)
            answers.restore(saved.answers, responses, now, blobs)
        except IndexError as error:
            raise ValueError("a response is missing") from error
        if saved.answers.slot is not None:
            answers.slot.restore(saved.answers.slot, made.native.setup if made.native is not None else None)
            return actions
        return self._then([*actions, *answers.lose_worker()], now)

    # -------------------------------------------------------------------------------------- the slot

    def opened(self, now: float) -> list[Action]:
        if (wrong := self._wrong_model()) is not None:
            return self._conclude(wrong)
        return self._answers.slot.want(now + self._limits.realtime_wait_s)

    def queued(self, place: Place) -> list[Action]:
        """Return nothing: the protocol has no event for the queue."""
        return []

    def granted(self, now: float) -> list[Action]:
        if self.is_over or self._answers.slot.phase is WorkerSlotPhase.NONE:
            return []
        self._answers.slot.granted(now)
        if self._dialogue is not None:
            return self._then([], now)
        if (wrong := self._wrong_model()) is not None:
            return self._conclude(wrong)
        limit_s = self._limits.session_limit_s
        self._limit_at = now + limit_s if limit_s else None
        expires_at = int(self._unix(now + (limit_s or LONGEST_S)))
        try:
            settings = initial(self._model, self._given, self._catalogue())
        except Refusal as refusal:
            return self._conclude(opening_end(refusal))
        self._dialogue = Dialogue(
            self._session_id,
            settings,
            expires_at,
            self._factory,
            self._answers,
            self._catalogue,
            self._limits,
        )
        actions = self._then(self._dialogue.created(), now)
        while self._early and not self.is_over:
            event, _ = self._early.popleft()
            actions += self._take(False, 0, event, now)
        return actions

    def displaced(self) -> None:
        """Handle a worker lost before it was ready: `granted` or `refused` follows, in time."""

    def refused(self, verdict: Verdict) -> list[Action]:
        """Fail the open responses, because there is no slot; the next response asks for another slot.

        The session ends if it has not begun, the model takes turns by itself, or the reason is permanent.
        """
        native = self._native
        is_native = native is not None and not native.is_away
        if self._dialogue is None or is_native or verdict.code not in _TEMPORARY:
            return self.ended(verdict)
        self._answers.slot.lost()
        return self._answers.fail_all(Code.OVERLOADED, verdict.message)

    def signal(self, signal: Signal, now: float) -> list[Action]:
        if self.is_over:
            return []
        slot = self._answers.slot
        actions: list[Action] = []
        match signal:
            case Ready():
                slot.begun(signal)
                if self._native_has_slot and self._native is not None:
                    actions = self._native.begin(signal, now)
            case Prefilled() | Piece() | UnitDone() | Finalized() | Rewound() | Moved() if (
                self._native_has_slot
            ):
                assert self._native is not None
                actions = self._native.signal(signal, now)
            case Prefilled() | Piece() | UnitDone():
                actions = self._answers.signal(signal, now)
            case Finalized():
                actions = slot.finalized()
            case GoingAway() if self._native_has_slot:
                assert self._native is not None
                actions = self._native.restart(now) if self._native.active is None else []
                self._native.expire()
            case GoingAway():
                actions = slot.going_away()
            case Failed():
                return self._worker_failed(signal.reason, now)
        if self._answers.failures >= FAILURES_IN_A_ROW:
            return [*actions, *self._conclude(end_of(GAVE_UP))]
        return self._then(actions, now)

    def _worker_failed(self, reason: Reason, now: float) -> list[Action]:
        """Handle a lost worker: the open responses fail, and the next one uses another worker."""
        if reason is Reason.MODEL_NOT_FOUND:
            message = f"the model {shown(self._model)} is not served here; /v1/models lists those that are"
            return self._conclude(model_end(Code.INVALID_MODEL, message))
        native = self._native
        if native is not None and self._native_has_slot:
            if reason in _PROMPT_TOO_LONG and not native.has_begun and native.shorten():
                return self._then(self._answers.slot.leave(), now)
            return self._conclude(end_of(errors.lost(reason, is_going_away=False)))
        verdict = VERDICTS[reason]
        code = Code.INVALID_VALUE if reason in errors.CORRECTABLE else Code.INTERNAL
        told = self._answers.fail_all(code, verdict.message)
        return self._then([*self._answers.slot.leave(), *told], now)

    @property
    def _native_has_slot(self) -> bool:
        """Whether the worker has the session of a model that takes turns by itself."""
        native, setup = self._native, self._answers.slot.setup
        return native is not None and setup is not None and setup is native.setup

    def _wrong_model(self) -> End | None:
        catalogue = self._catalogue()
        if not self._model:
            message = "no model is named; connect to /v1/realtime?model= with one of /v1/models"
            return model_end(Code.MISSING_MODEL, message)
        if catalogue is not None and self._model not in catalogue.models:
            return model_end(
                Code.INVALID_MODEL, f"model: expected {catalogue.choices}, got {shown(self._model)}"
            )
        return None

    # ------------------------------------------------------------------------------------ the client

    def text_frame(self, frame: bytes, now: float, *, drops_input: bool = False) -> list[Action]:
        if self.is_over:
            return []
        if not self._events.allow(now):
            return self._conclude(end_of(self._events.flood))
        take = partial(self._take, drops_input, len(frame))
        if len(frame) <= LARGE_FRAME:
            return take(FRAMES.read(frame, drops_input), now)
        return self._reading.offload(len(frame), partial(FRAMES.read, frame, drops_input), take)

    def binary_frame(self, now: float) -> list[Action]:
        refusal = Denied(Code.INVALID_EVENT, errors.BINARY_FRAME.message)
        return [] if self.is_over else self._refuse(refusal, None, now)

    def congested(self, is_congested: bool, now: float) -> list[Action]:
        """Handle the start or end of back-pressure: the model's output waits here."""
        self._answers.congested(is_congested, now)
        return self._native.congested(is_congested, now) if self._native is not None else []

    def withdrawn(self, sends: list[Send]) -> list[Action]:
        """Return nothing: `Withdraw` is never used."""
        return []

    def slow_consumer(self) -> list[Action]:
        return self.ended(errors.SLOW)

    def disconnected(self) -> None:
        self.is_over = True

    def detected(self, scores: Sequence[float], now: float) -> list[Action]:
        if self.is_over or self._dialogue is None:
            return []
        return self._then(self._dialogue.detected(scores, now), now)

    # ---------------------------------------------------------------------------------------- time

    def tick(self, now: float, others_wait: bool) -> list[Action]:
        if self.is_over:
            return []
        if is_due(self._limit_at, now):
            minutes = self._limits.session_limit_s / 60
            message = f"Your session hit the maximum duration of {minutes:g} minutes."
            return self._conclude(end_of(Verdict(None, message, errors.TIMEOUT, None)))
        slot, dialogue = self._answers.slot, self._dialogue
        actions: list[Action] = []
        if is_due(slot.due_at, now):
            is_native = self._native is not None and not self._native.is_away
            if slot.phase is WorkerSlotPhase.WANTED and (dialogue is None or is_native):
                return self._conclude(end_of(errors.QUEUE_TIMEOUT))
            if slot.phase is WorkerSlotPhase.WANTED:
                actions += [
                    *slot.leave(),
                    *self._answers.fail_all(Code.OVERLOADED, errors.QUEUE_TIMEOUT.message),
                ]
            elif is_native and self._native is not None:
                actions += self._native.open(slot)
            elif dialogue is not None:
                actions += slot.open(dialogue.settings.setup)
        if self._native is not None and not self._native.is_away:
            actions += self._native.tick(now)
        if is_due(self._answers.resumes_at, now):
            actions += self._answers.resume(now)
        if dialogue is not None and is_due(dialogue.idle_at, now):
            actions += dialogue.timed_out()
        if is_due(self._unused_at, now):
            self._unused_at = now + IDLE_S
            if others_wait and self._answers.is_idle:
                actions += slot.leave()
                if self._native is not None:
                    self._native.give_back(now)
        return self._then(actions, now)

    def ended(self, verdict: Verdict) -> list[Action]:
        return [] if self.is_over else self._conclude(end_of(verdict))

    def shut_down(self) -> list[Action]:
        return self.ended(errors.SHUTTING_DOWN if self.is_waiting else errors.SERVER_SHUTDOWN)

    # ------------------------------------------------------------------------------ the state table

    def _take(self, drops_input: bool, size: int, event: ClientEvent | Fault, now: float) -> list[Action]:
        if self.is_over:
            return []
        if self._dialogue is None:
            return self._hold(event, size)
        if isinstance(event, Fault):
            if event.refusal is None:
                return self._conclude(end_of(errors.NOT_UTF8))
            return self._refuse(event.refusal, event.event_id, now)
        try:
            if drops_input and isinstance(event, ItemCreate | ResponseCreate):
                raise Refusal(ErrorCode.SERVICE_UNAVAILABLE, errors.OVERLOADED.message)
            if self._native is not None or not isinstance(event, AudioAppend):
                self._unused_at = now + IDLE_S
            done = self._commands.obey(event, self._dialogue, size, now)
            if isinstance(done, DeferredRead):
                done = self._read(event, done, now)
            return self._then(done, now)
        except Refusal as refusal:
            return self._refuse(refusal, event.event_id, now)

    def _hold(self, event: ClientEvent | Fault, size: int) -> list[Action]:
        """Hold an event until there is a slot."""
        self._early.append((event, size))
        self._early_bytes += size
        if self._early_bytes <= MOST_EARLY_BYTES and len(self._early) <= MOST_EARLY:
            return []
        message = "too much came before the session had a slot; wait for session.created"
        return self._conclude(
            end_of(Verdict(ErrorCode.SERVICE_UNAVAILABLE, message, None, CloseCode.TRY_AGAIN_LATER))
        )

    def _read(self, event: ClientEvent, later: DeferredRead, now: float) -> list[Action]:
        """Read a possibly long event, off the event loop if it is large, and handle it."""
        if later.size <= LARGE_FRAME:
            return later.then(later.read())

        def attempt() -> Any:
            try:
                return later.read()
            except Refusal as refusal:
                return refusal

        def go_on(result: Any, now: float) -> list[Action]:
            if self.is_over:
                return []
            try:
                if isinstance(result, Refusal):
                    raise result
                return self._then(later.then(result), now)
            except Refusal as refusal:
                return self._refuse(refusal, event.event_id, now)

        return self._reading.offload(later.size, attempt, go_on)

    def _then(self, actions: list[Action], now: float) -> list[Action]:
        """Return `actions` and those that follow: answer turns, and request a worker for them."""
        dialogue, answers = self._dialogue, self._answers
        if dialogue is None:
            return actions
        if any(isinstance(act, Send) and isinstance(act.event, events.ResponseDone) for act in actions):
            dialogue.answered(now)
        native = dialogue.native
        if native is not None and native.verdict is not None:
            return [*actions, *self._conclude(end_of(native.verdict))]
        actions = [*actions, *dialogue.answer_turn()]
        if native is None:
            actions += answers.advance(now)
        elif not answers.is_idle and native.active is None:
            native.leave(user_speaks=dialogue.user_speaks)
            actions += answers.advance(now)
        else:
            if native.is_away:
                actions += native.come_back(now)
            actions += native.advance(answers.slot, now + self._limits.realtime_wait_s, now)
        is_used = not answers.is_idle or (native is not None and native.active is not None)
        self._unused_at = None if is_used else self._unused_at or now + IDLE_S
        return actions

    # ----------------------------------------------------------------------------------------- errors

    def _refuse(self, refusal: Refusal, event_id: str | None, now: float) -> list[Action]:
        if not self._errors.allow(now):
            return self._conclude(end_of(self._errors.flood))
        return [self._factory.error(code_of(refusal), refusal.message, refusal.param, event_id)]

    def _conclude(self, end: End) -> list[Action]:
        self.is_over = True
        told: list[Action] = []
        if end.code is not None:
            told.append(self._factory.error(end.code, end.message))
        return [*told, CloseSocket(end.close, end.reason)]


_PROMPT_TOO_LONG: Final = frozenset({Reason.INPUT_TOO_LONG, Reason.CONFIG_INVALID})
"""Reasons that a worker may give for a prompt that is too long; CONFIG_INVALID has other causes too."""

_TEMPORARY: Final = frozenset(
    {
        ErrorCode.QUEUE_FULL,
        ErrorCode.QUEUE_TIMEOUT,
        ErrorCode.SERVICE_UNAVAILABLE,
        ErrorCode.WORKER_BUSY,
        ErrorCode.WORKER_CONNECT_FAILED,
    }
)
"""Temporary reasons for which there is no slot."""
