"""The dialect of `/ws/chat`: one request, one answer, and then the connection closes."""

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import ClassVar, Final

import msgspec

from antiphon.contract import Reason
from ws_adapter.protocol.chat import ws_chat_events
from ws_adapter.protocol.chat.content import ChatRules, Request, read_request
from ws_adapter.protocol.chat.reply import Reply, failure
from ws_adapter.protocol.chat.saved import SavedChat
from ws_adapter.protocol.chat.tools import CallPiece
from ws_adapter.protocol.chat.ws_chat_events import Chunk, Done, Error, PrefillDone, QueueDone
from ws_adapter.protocol.core.actions import (
    CloseSocket,
    OpenWorkerSession,
    RunTurn,
    Send,
    TakeSlot,
)
from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.config import Catalogue, ChatSetup, capabilities_of, listed
from ws_adapter.protocol.core.machine import Action, Place, WithoutDetection
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
from ws_adapter.protocol.core.turn import Turn
from ws_adapter.protocol.duplex.ws_duplex_events import Queued, QueueUpdate
from ws_adapter.protocol.media.reference_voice import NO_VOICE
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.codec import RequestDecoder
from ws_adapter.protocol.wire.errors import VERDICTS, CloseCode, ErrorCode, InvalidUtf8, Refusal, Verdict
from ws_adapter.protocol.wire.limits import (
    LARGE_FRAME,
    Limits,
    events_window,
)

_RULES: Final = ChatRules(root="", speaks=True)
_DECODER: Final[RequestDecoder[ws_chat_events.ChatRequest]] = RequestDecoder(ws_chat_events.ChatRequest)

_CODES: Final = {
    errors.SHUTDOWN: ErrorCode.SERVICE_UNAVAILABLE,
    errors.SLOW_CONSUMER: ErrorCode.SLOW_CONSUMER,
}
"""Close reasons of other dialects, and their error codes in this one."""


_ENCODER: Final = msgspec.msgpack.Encoder()
_SAVED_DECODER: Final = msgspec.msgpack.Decoder(SavedChat)


class State(Enum):
    """The states of a request."""

    WAIT_REQUEST = auto()
    QUEUED = auto()
    PREFILL = auto()
    GENERATE = auto()
    DONE = auto()


class Chat(WithoutDetection):
    """The dialect of `/ws/chat`. `recording_id` is that of the session's recording, if one is made."""

    drops_stale: ClassVar = False
    can_be_saved: ClassVar[bool] = True

    def __init__(
        self, limits: Limits, catalogue: Callable[[], Catalogue | None], recording_id: str | None = None
    ) -> None:
        self.state = State.WAIT_REQUEST
        self._limits = limits
        self._catalogue = catalogue
        self._recording_id = recording_id
        self._init_at: float | None = None
        self._reading = Reading()
        self._request: Request | None = None
        self.reply = Reply(0.0, streaming=True)
        self._unsupported: list[str] = []
        self._has_waited = False
        self._is_going_away = False
        self._is_answered = False
        self._frames = events_window("frames")

    @property
    def is_over(self) -> bool:
        return self.state is State.DONE

    @property
    def is_waiting(self) -> bool:
        return self.state in (State.WAIT_REQUEST, State.QUEUED)

    @property
    def held_bytes(self) -> int:
        if self.is_over:
            return 0
        held = self._reading.held_bytes + self.reply.audio_bytes
        if self._request is None or self.state is State.GENERATE:
            return held
        return held + self._request.size

    @property
    def deadline(self) -> float | None:
        return None if self.is_over else self._init_at

    # --------------------------------------------------------------------------------- the state

    def save(self, now: float, blobs: Blobs, *, has_journal: bool) -> bytes | None:
        """Return the state; None until the model has read the messages."""
        is_done = self.state is State.DONE and self._is_answered
        if not (is_done or self.state is State.GENERATE):
            return None
        is_lost = not (has_journal or is_done)
        saved = SavedChat(is_done, is_lost, self.reply.save(now, blobs), tuple(self._unsupported))
        return _ENCODER.encode(saved)

    def restore(self, state: bytes, blobs: Saved, now: float) -> list[Action]:
        """Go on from a saved state. An unfinished answer without a journal fails."""
        saved = _SAVED_DECODER.decode(state)
        self.reply = Reply.restored(saved.reply, blobs, now)
        self._request = Request(Turn(()), saved.reply.streaming, None)  # a worker has it
        self._unsupported = list(saved.unsupported)
        if saved.is_done:
            self.state, self._is_answered = State.DONE, True
            return [CloseSocket(CloseCode.NORMAL, errors.DONE)]
        self.state = State.GENERATE
        return self._conclude(VERDICTS[Reason.WORKER_LOST]) if saved.is_lost else []

    # -------------------------------------------------------------------------------- the client

    def opened(self, now: float) -> list[Action]:
        self._init_at = now + self._limits.init_timeout_s
        return []

    def text_frame(self, frame: bytes, now: float, *, drops_input: bool = False) -> list[Action]:
        """Handle a text frame: the first is the request, later ones are ignored."""
        if self.is_over:
            return []
        if not self._frames.allow(now):
            return self._conclude(self._frames.flood)
        if self.state is not State.WAIT_REQUEST or self._reading.held_bytes:
            return []
        if drops_input:
            return self._conclude(errors.OVERLOADED)
        self._init_at = None
        read = partial(self.read, frame, self._catalogue())
        if len(frame) > LARGE_FRAME:
            return self._reading.offload(len(frame), read, self._take)
        return self._take(read(), now)

    def binary_frame(self, now: float) -> list[Action]:
        if self.state is not State.WAIT_REQUEST or self._reading.held_bytes:
            return []
        return self._conclude(errors.BINARY_FRAME)

    def _take(self, request: Request | Refusal | InvalidUtf8, now: float) -> list[Action]:
        if self.is_over:
            return []
        match request:
            case InvalidUtf8():
                return self._conclude(errors.NOT_UTF8)
            case Refusal():
                is_json = request.code is not ErrorCode.INVALID_JSON
                close = CloseCode.POLICY_VIOLATION if is_json else CloseCode.UNSUPPORTED_DATA
                return self._conclude(Verdict(request.code, request.message, None, close), request)
        self._request = request
        self.reply = Reply(now, streaming=request.streaming)
        self.state = State.QUEUED
        return [TakeSlot(self.setup_of(request).model)]

    def congested(self, is_congested: bool, now: float) -> list[Action]:
        """Do nothing: a running answer cannot be paused."""
        return []

    def withdrawn(self, sends: list[Send]) -> list[Action]:
        return []

    def slow_consumer(self) -> list[Action]:
        return [] if self.is_over else self._conclude(errors.SLOW)

    def disconnected(self) -> None:
        self.state = State.DONE

    # ---------------------------------------------------------------------------------- the slot

    def queued(self, place: Place) -> list[Action]:
        if self.state is not State.QUEUED:
            return []
        shape = QueueUpdate if self._has_waited else Queued
        self._has_waited = True
        wait_s = round(place.estimated_wait_s, 1)
        return [
            Send(
                shape(
                    position=place.position,
                    estimated_wait_s=wait_s,
                    eta_seconds=wait_s,
                    estimate_is_guess=place.estimate_is_guess,
                    ticket_id=place.ticket_id,
                    queue_length=place.queue_length,
                )
            )
        ]

    def granted(self, now: float) -> list[Action]:
        if self.is_over or self._request is None:
            return []
        told = [Send(QueueDone())] if self._has_waited and self.state is State.QUEUED else []
        self.state = State.PREFILL
        return [*told, OpenWorkerSession(self.setup_of(self._request))]

    def displaced(self) -> None:
        self._is_going_away = False

    def refused(self, verdict: Verdict) -> list[Action]:
        return self.ended(verdict)

    def signal(self, signal: Signal, now: float) -> list[Action]:
        if self.is_over or self._request is None:
            return []
        match signal:
            case Ready():
                return self.run(self._request, signal)
            case Prefilled():
                self.reply.prefilled = signal
                ignored = self._request.ignored_by(signal)
                self._unsupported = list(listed([*self._unsupported, *ignored]))
                self.state = State.GENERATE
                return self.was_read()
            case Piece():
                return self._say(signal)
            case UnitDone():
                return self._done(signal)
            case GoingAway():
                self._is_going_away = True
            case Failed():
                return self._conclude(
                    errors.SERVER_SHUTDOWN if self._is_going_away else VERDICTS[signal.reason]
                )
        return []

    def _say(self, piece: Piece) -> list[Action]:
        try:
            called = self.reply.add(piece)
        except Refusal as refusal:
            return self.refuse(refusal)
        if not self.reply.streaming or not (piece.text or piece.audio or piece.thinking or called):
            return []
        return self.said(piece, called)

    def _done(self, done: UnitDone) -> list[Action]:
        if done.end is UnitEnd.FAILED:
            return self.refuse(failure(done))
        if done.end is UnitEnd.CANCELLED:
            return self._conclude(VERDICTS[Reason.WORKER_LOST])
        self.state, self._is_answered = State.DONE, True
        return [*self.answered(done), CloseSocket(CloseCode.NORMAL, errors.DONE)]

    # ------------------------------------------------------------------ the events of the dialect

    def read(self, frame: bytes, catalogue: Catalogue | None) -> Request | Refusal | InvalidUtf8:
        """Return the request in a frame, or its error. May run on another thread."""
        try:
            return read_request(_DECODER.decode(frame), _RULES, capabilities_of("", catalogue))
        except (Refusal, InvalidUtf8) as fault:
            return fault

    def setup_of(self, request: Request) -> ChatSetup:
        """Return the setup of the session at the worker. The protocol has no field for a model."""
        return ChatSetup(voice=request.voice or NO_VOICE)

    def run(self, request: Request, ready: Ready) -> list[Action]:
        """Give the turn to a ready worker."""
        turn, self._unsupported = request.for_worker(ready, has_own_session=True)
        return [RunTurn(1, turn)]

    def was_read(self) -> list[Action]:
        """Send the event for messages that the model has read."""
        return [Send(PrefillDone(input_tokens=self.reply.input_tokens))]

    def said(self, piece: Piece, called: CallPiece | None) -> list[Action]:
        """Send a piece of a streamed answer."""
        chunk = Chunk(text_delta=piece.text, audio_data=piece.audio or None)
        chunk.thinking_delta, chunk.tool_call = piece.thinking, called
        return [Send(chunk)]

    def answered(self, done: UnitDone) -> list[Action]:
        """Send the whole answer."""
        event = Done(
            text=self.reply.text,
            generated_tokens=done.tokens.output_token_details.text_tokens,
            input_tokens=self.reply.input_tokens,
            audio_data=self.reply.audio or None,
            recording_session_id=self._recording_id,
            unsupported_fields=self._unsupported,
            thinking=self.reply.thinking,
            tool_calls=self.reply.calls.complete,
        )
        return [Send(event)]

    def failed(self, verdict: Verdict, code: ErrorCode, refusal: Refusal | None) -> list[Action]:
        """Send the one error; `refusal` is set if the request is at fault."""
        return [Send(Error(error=verdict.message, code=code))]

    # ---------------------------------------------------------------------------------- the rest

    def tick(self, now: float, others_wait: bool) -> list[Action]:
        if self.is_over or self._init_at is None or now < self._init_at:
            return []
        message = (
            f"no request came within {self._limits.init_timeout_s:g} s; connect again and send it at once"
        )
        return self.refuse(Refusal(ErrorCode.INIT_TIMEOUT, message))

    def ended(self, verdict: Verdict) -> list[Action]:
        return [] if self.is_over else self._conclude(verdict)

    def shut_down(self) -> list[Action]:
        if self.is_over:
            return []
        return self._conclude(errors.SHUTTING_DOWN if self.is_waiting else errors.SERVER_SHUTDOWN)

    def refuse(self, refusal: Refusal) -> list[Action]:
        """End the session with an error of the request."""
        if self.is_over:
            return []
        return self._conclude(Verdict(refusal.code, refusal.message, None, None), refusal)

    def _conclude(self, verdict: Verdict, refusal: Refusal | None = None) -> list[Action]:
        """Send the one error and close."""
        self.state = State.DONE
        if verdict.close is CloseCode.INVALID_UTF8:
            return [*self.not_text(), CloseSocket(verdict.close, verdict.message)]
        code = verdict.code or _CODES.get(verdict.closed or "", ErrorCode.INFERENCE_ERROR)
        close = verdict.close
        if close is None:
            close = CloseCode.INTERNAL_ERROR if code.is_servers else CloseCode.POLICY_VIOLATION
        return [*self.failed(verdict, code, refusal), CloseSocket(close, verdict.closed or code)]

    def not_text(self) -> list[Action]:
        """Return the actions before the close for a frame that is not UTF-8."""
        return []
