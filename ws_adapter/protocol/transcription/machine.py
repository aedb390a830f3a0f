"""The dialect of `/v1/transcription`: utterances between commits, text while they are processed."""

from collections.abc import Callable
from typing import ClassVar, Final

import msgspec

from antiphon.contract import Reason
from ws_adapter.protocol.core.actions import (
    CancelUnits,
    CloseSocket,
    LeaveSlot,
    Note,
    Send,
)
from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.config import Catalogue
from ws_adapter.protocol.core.machine import Action, Place, WithoutDetection, link_trace
from ws_adapter.protocol.core.signals import (
    Failed,
    Finalized,
    GoingAway,
    Moved,
    Piece,
    Ready,
    Signal,
    UnitDone,
    UnitEnd,
)
from ws_adapter.protocol.core.state import SlotPhase
from ws_adapter.protocol.transcription.commands import Append, ChooseModel, Commit, Rejection, read_command
from ws_adapter.protocol.transcription.events import Code, Delta, Error, SessionCreated
from ws_adapter.protocol.transcription.saved import SavedTranscription
from ws_adapter.protocol.transcription.slot import TranscriptionSlot
from ws_adapter.protocol.transcription.utterance import Utterance, Utterances
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import CloseCode, ErrorCode, InvalidUtf8, Verdict
from ws_adapter.protocol.wire.limits import (
    ERRORS_PER_S,
    Limits,
    errors_window,
    events_window,
    is_due,
)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SavedTranscription)

_NOTE_S: Final = 1.0
"""The seconds for which unsent errors are counted before a log line."""

_LONGEST_NAME: Final = 256

_SLOW: Final = "the client does not read its events; read while you send, and connect again"
LOST: Final = "the utterance could not be processed; commit again to begin another"
_REFUSED_AUDIO: Final = "the model refused the audio of the utterance; commit again to begin another"

UNSERVED: Final = {
    ErrorCode.QUEUE_FULL: (Code.QUEUE_FULL, "the queue is full"),
    ErrorCode.WORKER_BUSY: (Code.QUEUE_FULL, "the worker has no free slot at the moment"),
    ErrorCode.QUEUE_TIMEOUT: (Code.QUEUE_FULL, "no slot became free within the longest wait allowed"),
    ErrorCode.QUEUE_CANCELLED: (Code.QUEUE_FULL, "the place in the queue was given up"),
    ErrorCode.SERVICE_UNAVAILABLE: (Code.SERVICE_UNAVAILABLE, "no worker is ready"),
}
"""The code and text for each verdict that denies an utterance its slot; its audio is kept."""


class Transcription(WithoutDetection):
    """The machine of `/v1/transcription`. It holds a slot for each utterance, and for a while after it if no
    other session waits.

    `session_id` is `sess-` and 32 hexadecimal digits, `created` is in Unix seconds, `catalogue` returns
    the served pools, None while no worker is known.
    """

    drops_stale: ClassVar = False
    can_be_saved: ClassVar = True

    def __init__(
        self,
        session_id: str,
        created: int,
        limits: Limits,
        catalogue: Callable[[], Catalogue | None],
    ) -> None:
        self.is_over = False
        self._session_id = session_id
        self._created = created
        self._idle_s = limits.transcription_idle_s
        self._catalogue = catalogue
        self._utterances = Utterances(limits.transcription_buffer_s)
        self._heard_at = 0.0
        """The time of the last input for an utterance."""
        self._errors = errors_window()
        self._refused = events_window("refused events")
        self._suppressed = 0
        self._note_at: float | None = None
        self._congested = False
        self._slot = TranscriptionSlot(self._idle_s)

    @property
    def is_waiting(self) -> bool:
        return self._utterances.current is None or not self._slot.has_worker

    @property
    def held_bytes(self) -> int:
        return 0 if self.is_over else self._utterances.waiting_bytes + sum(self._slot.at_worker)

    @property
    def deadline(self) -> float | None:
        if self.is_over:
            return None
        times = (self._slot.look_at, self._idle_at, self._segment_at, self._slot.away_at, self._note_at)
        return min((at for at in times if at is not None), default=None)

    @property
    def _idle_at(self) -> float | None:
        """The idle deadline of the current utterance."""
        current = self._utterances.current
        if not self._slot.has_worker or current is None or current.is_ended:
            return None
        return max(self._heard_at, self._slot.granted_at) + self._idle_s

    @property
    def _segment_at(self) -> float | None:
        """The earliest time at which a segment can be sent to the worker."""
        if not self._slot.has_room or self._congested or self._utterances.current is None:
            return None
        return self._utterances.current.next_segment_at()

    # ------------------------------------------------------------------------------------- the state

    def save(self, now: float, blobs: Blobs, *, has_journal: bool) -> bytes | None:
        if self.is_over:
            return None
        saved = SavedTranscription(
            self._created,
            self._utterances.save(now, blobs),
            now - self._heard_at,
            self._slot.save(now, has_journal=has_journal),
            self._save_dialect(blobs),
        )
        return _ENCODER.encode(saved)

    def restore(self, state: bytes, blobs: Saved, now: float) -> list[Action]:
        saved = _DECODER.decode(state)
        self._created, self._heard_at = saved.created, now - saved.heard_ago
        self._utterances.restore(saved.utterances, blobs, now)
        actions = self._restore_dialect(saved.dialect, blobs)
        if saved.slot is not None:
            self._slot.restore(saved.slot, now)
            return actions
        current = self._utterances.current
        if current is not None and current.has_begun:
            actions += self._fail(Code.PROCESSING_ERROR, LOST)
        return [*actions, *self._advance(now)]

    def _save_dialect(self, blobs: Blobs) -> bytes:
        """Return the state of a derived protocol."""
        return b""

    def _restore_dialect(self, state: bytes, blobs: Saved) -> list[Action]:
        """Restore the state of a derived protocol. Raises `ValueError` or `KeyError`."""
        return []

    # ------------------------------------------------------------------------------------ the client

    def opened(self, now: float) -> list[Action]:
        return [Send(SessionCreated(id=self._session_id, created=self._created))]

    def text_frame(self, frame: bytes, now: float, *, drops_input: bool = False) -> list[Action]:
        if self.is_over:
            return []
        try:
            command = read_command(frame, drops_input=drops_input)
            self._obey(command, now)
        except InvalidUtf8:
            return self._close(CloseCode.INVALID_UTF8, "invalid UTF-8")
        except Rejection as rejection:
            return self._reject(rejection, now)
        relation = link_trace(command.trace_context) if isinstance(command, ChooseModel | Append) else []
        return [*relation, *self._advance(now)]

    def binary_frame(self, now: float) -> list[Action]:
        if self.is_over:
            return []
        message = "expected JSON in a text frame, got a binary frame; send text frames only"
        return self._reject(Rejection(Code.INVALID_FRAME, message), now)

    def _obey(self, command: ChooseModel | Append | Commit, now: float) -> None:
        match command:
            case ChooseModel():
                self._utterances.choose(self._served(command.model))
            case Append():
                self._heard_at = now
                self._utterances.hear(command.pcm, now)
            case Commit():
                if self._utterances.commit(now, is_final=command.is_final):
                    self._heard_at = now

    def _served(self, model: str) -> str:
        catalogue = self._catalogue()
        if catalogue is not None and model not in catalogue.models:
            message = f"the model {model[:_LONGEST_NAME]} is not served here; choose {catalogue.choices}"
            raise Rejection(Code.MODEL_NOT_FOUND, message)
        return model

    def _reject(self, rejection: Rejection, now: float) -> list[Action]:
        # Accepted events need no limit here: small frames are limited on arrival, and audio by its bound.
        if not self._refused.allow(now):
            return self.ended(self._refused.flood)
        if self._errors.allow(now):
            return [Send(rejection.event)]
        self._suppressed += 1
        self._note_at = self._note_at or now + _NOTE_S
        return []

    def congested(self, is_congested: bool, now: float) -> list[Action]:
        self._congested = is_congested
        return self._advance(now)

    def withdrawn(self, sends: list[Send]) -> list[Action]:
        """Return nothing: `Withdraw` is never used."""
        return []

    def slow_consumer(self) -> list[Action]:
        if self.is_over:
            return []
        told = Send(Error(error=_SLOW, code=Code.SLOW_CONSUMER))
        return [told, *self._close(CloseCode.POLICY_VIOLATION, errors.SLOW_CONSUMER)]

    def disconnected(self) -> None:
        self.is_over = True

    # ---------------------------------------------------------------------------------------- the slot

    def queued(self, place: Place) -> list[Action]:
        """Return nothing: clients get no queue events."""
        return []

    def granted(self, now: float) -> list[Action]:
        current = self._utterances.current
        if self.is_over:
            return []
        if current is None:
            return self._slot.leave()
        return self._slot.open(current.model, now)

    def displaced(self) -> None:
        self._slot.displaced()

    def refused(self, verdict: Verdict) -> list[Action]:
        if self.is_over or self._utterances.current is None:
            return []
        self._slot.forget()
        if verdict.code not in UNSERVED:
            return [*self._fail(Code.PROCESSING_ERROR, LOST), *self._advance(self._heard_at)]
        self._utterances.put_back()
        code, why = UNSERVED[verdict.code]
        told = Send(Error(error=f"{why}; the audio is kept, so commit again later", code=code))
        return [told, *self._advance(self._heard_at)]

    # ------------------------------------------------------------------------------------ the worker

    def signal(self, signal: Signal, now: float) -> list[Action]:
        if self.is_over:
            return []
        told: list[Action] = []
        match signal:
            case Ready():
                self._slot.begun(signal)
            case Piece():
                told = self._piece(signal)
            case UnitDone():
                told = self._unit_done(signal)
            case Finalized():
                self._slot.at_worker.popleft()
            case GoingAway():
                self._slot.away_at = now + signal.time_left_s
            case Moved():
                self._slot.away_at = None
            case Failed():
                told = self._worker_failed(signal.reason)
        return [*told, *self._advance(now)]

    def _piece(self, piece: Piece) -> list[Action]:
        current = self._utterances.current
        if current is None or not current.holds(piece.unit) or not piece.text:
            return []
        current.say(piece.text)
        return self._tell_text(piece.text)

    def _unit_done(self, done: UnitDone) -> list[Action]:
        current = self._utterances.current
        if current is None or not current.holds(done.unit):
            return []
        current.sampled_tokens += done.tokens.output_token_details.text_tokens
        if done.end is UnitEnd.FAILED:
            verdict = errors.VERDICTS[done.failure or Reason.INFERENCE_FAILED]
            if verdict.code is ErrorCode.INVALID_PAYLOAD:
                return self._fail(Code.INVALID_AUDIO, _REFUSED_AUDIO)
            return self._fail(Code.PROCESSING_ERROR, LOST)
        if done.end is UnitEnd.CONTEXT_FULL:
            self._slot.forget()  # the worker ends its session when the context is full
            text = "the context of the model is full; commit again to go on in a new utterance"
            return [*self._tell_cut(current), *self._fail(Code.CONTEXT_FULL, text), LeaveSlot()]
        return self._finish() if done.unit == current.last_unit else []

    def _worker_failed(self, reason: Reason) -> list[Action]:
        was_leaving = self._slot.away_at is not None
        self._slot.forget()
        current = self._utterances.current
        if current is None:
            return [LeaveSlot()]
        if was_leaving:
            return self._close(CloseCode.SERVICE_RESTART, errors.SHUTDOWN)
        if errors.VERDICTS[reason].closed == errors.TIMEOUT:
            current.is_ended = current.is_timed_out = True
            return [*self._finish(), LeaveSlot()]
        if reason is Reason.MODEL_NOT_FOUND:
            name = current.model[:_LONGEST_NAME]
            told = self._fail(Code.MODEL_NOT_FOUND, f"the model {name} is not served; choose another")
        else:
            told = self._fail(Code.PROCESSING_ERROR, LOST)
        return [*told, LeaveSlot()]

    # ------------------------------------------------------------------------------- the utterances

    def _finish(self) -> list[Action]:
        """Complete the current utterance."""
        utterance = self._utterances.finish()
        return [*self._tell_done(utterance), *(self._tell_timed_out() if utterance.is_timed_out else [])]

    def _fail(self, code: Code, message: str) -> list[Action]:
        """Fail the current utterance and skip its remaining input."""
        self._utterances.fail()
        told = self._tell_failure(code, message)
        if self._slot.at_worker:
            told.append(CancelUnits(self._slot.last_unit))
        return told

    def _advance(self, now: float) -> list[Action]:
        """Advance the state as far as possible; `now` has no effect without a slot."""
        told: list[Action] = []
        if self.is_over:
            return told
        while (current := self._utterances.current) is None or current.is_empty:
            if current is not None:
                told += self._finish()
            if self._utterances.begin_next() is None:
                return [*told, *self._slot.rest(now)]
            self._slot.reconsider(now)
        self._slot.occupy()
        if self._slot.phase is SlotPhase.NONE:
            return [*told, *self._slot.want(current.model)]
        while (at := self._segment_at) is not None and at <= now:
            segment = self._utterances.take_segment(self._slot.last_unit + 1, now)
            told.append(self._slot.run(current, segment))
        return told

    # ------------------------------------------------------------------------------------ the events

    def _tell_text(self, text: str) -> list[Action]:
        """Send further text of the current utterance."""
        return [Send(Delta(delta=text))]

    def _tell_done(self, utterance: Utterance) -> list[Action]:
        """Send the final event of the utterance."""
        return [Send(utterance.done(self._slot.prompt_tokens))]

    def _tell_cut(self, utterance: Utterance) -> list[Action]:
        """Send the partial text of the utterance, which fails now."""
        return self._tell_done(utterance)

    def _tell_timed_out(self) -> list[Action]:
        """Send the error of an utterance that its idle limit has ended."""
        text = f"no input came for {self._idle_s:g} s, so the utterance was ended; commit again"
        return [Send(Error(error=text, code=Code.IDLE_TIMEOUT))]

    def _tell_failure(self, code: Code, message: str) -> list[Action]:
        """Send the error of a failed utterance."""
        return [Send(Error(error=message, code=code))]

    # ---------------------------------------------------------------------------------------- time

    def tick(self, now: float, others_wait: bool) -> list[Action]:
        if self.is_over:
            return []
        if is_due(self._slot.away_at, now):
            return self._close(CloseCode.SERVICE_RESTART, errors.SHUTDOWN)
        told: list[Action] = []
        if is_due(self._note_at, now):
            told.append(Note(f"{self._suppressed} errors were not sent, beyond {ERRORS_PER_S} in a second"))
            self._suppressed, self._note_at = 0, None
        current = self._utterances.current
        if is_due(self._slot.look_at, now):
            next_model = current.model if current is not None else None
            if not self._slot.is_kept(next_model, now, others_wait):
                told += self._slot.leave()
        if current is not None and is_due(self._idle_at, now):
            current.is_ended = current.is_timed_out = True
        return [*told, *self._advance(now)]

    # -------------------------------------------------------------------------------------- endings

    def ended(self, verdict: Verdict) -> list[Action]:
        if self.is_over:
            return []
        code = Code(verdict.code) if verdict.code in set(map(str, Code)) else Code.PROCESSING_ERROR
        close = verdict.close if verdict.close is not None else CloseCode.INTERNAL_ERROR
        told = Send(Error(error=verdict.message, code=code))
        return [told, *self._close(close, verdict.closed or verdict.code or "")]

    def shut_down(self) -> list[Action]:
        return [] if self.is_over else self._close(CloseCode.SERVICE_RESTART, errors.SHUTDOWN)

    def _close(self, code: CloseCode, reason: str) -> list[Action]:
        self.is_over = True
        return [CloseSocket(code, reason)]
