"""The state machine of `/v1/live/sessions`: output is played on a clock, independently of the model's pace.

Events in, actions out; nothing here does I/O or reads a clock. All times are seconds of one monotonic clock.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

import msgspec
import numpy as np

from antiphon.contract import Reason
from ws_adapter.protocol.core.actions import (
    CloseSocket,
    Detect,
    HoldInput,
    OpenWorkerSession,
    Send,
    TakeSlot,
    Withdraw,
    closing,
)
from ws_adapter.protocol.core.answer import Answer, Outcome, StandaloneText
from ws_adapter.protocol.core.blobs import Blobs, Saved, ago
from ws_adapter.protocol.core.config import Catalogue, capabilities_of
from ws_adapter.protocol.core.machine import Action, Place
from ws_adapter.protocol.core.reading import Reading
from ws_adapter.protocol.core.signals import Failed, GoingAway, Moved, Ready, Signal, TextPurpose
from ws_adapter.protocol.core.state import State
from ws_adapter.protocol.core.transcription import InputTranscript, InputTranscriptDelta
from ws_adapter.protocol.core.transcriptions import Transcriptions
from ws_adapter.protocol.duplex.deadlines import Deadlines
from ws_adapter.protocol.duplex.flow import Step, UnitFlow
from ws_adapter.protocol.duplex.input import LONGEST_TEXT, Append
from ws_adapter.protocol.duplex.texts import MOST_BYTES, MOST_TEXTS
from ws_adapter.protocol.live import events
from ws_adapter.protocol.live.conversation import Conversation, interruption
from ws_adapter.protocol.live.events import (
    AudioAppend,
    AudioMute,
    AudioUnmute,
    ClientEvent,
    Code,
    CommentaryAppend,
    InstructionsAppend,
    SessionClose,
    SessionResource,
    SessionStart,
    SessionUpdate,
    TextAppend,
    ThinkingAppend,
)
from ws_adapter.protocol.live.playout import SLICE_S
from ws_adapter.protocol.live.refusals import code_of, code_of_end, reason_of, unserved
from ws_adapter.protocol.live.saved import SavedLive, SavedTerms
from ws_adapter.protocol.live.settings import (
    Settings,
    Unsupported,
    delegation,
    read_settings,
    refuse_triggers,
)
from ws_adapter.protocol.live.sound import INPUT_RATE_HZ
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.codec import NO_AUDIO, Clip, CutBase64, Samples, decode_base64
from ws_adapter.protocol.wire.errors import CloseCode, ErrorCode, Refusal, Verdict, invalid, missing
from ws_adapter.protocol.wire.frames import Fault, FrameReader
from ws_adapter.protocol.wire.limits import LARGE_FRAME, Limits, errors_window, events_window, is_due

_FRAMES: Final[FrameReader[ClientEvent]] = FrameReader(ClientEvent)

_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(SavedLive)
_TERMS: Final = msgspec.msgpack.Decoder(SavedTerms)

DRAIN_S: Final = 10.0
"""The seconds for which a session that is to end may finish its speech."""

USAGE_S: Final = 5
"""The seconds of conversation between two usage events."""

LONGEST_S: Final = 10 * 365 * 86_400.0
"""The expiry of a session without a limit, in seconds."""

SLICE_MS: Final = round(SLICE_S * 1000)

FULL_INPUT_S: Final = 24.0
"""The seconds of waiting input at which reading stops."""

FULL_S: Final = 20.0
"""The seconds of waiting speech at which reading stops."""

EMPTIED: Final = 0.5
"""The share of these limits at which reading continues."""

PURPOSES: Final[dict[type, TextPurpose]] = {
    InstructionsAppend: TextPurpose.INSTRUCTIONS,
    ThinkingAppend: TextPurpose.THINKING,
    CommentaryAppend: TextPurpose.COMMENTARY,
}
_APPENDED: Final = {
    TextPurpose.INSTRUCTIONS: events.InstructionsAppended,
    TextPurpose.THINKING: events.ThinkingAppended,
    TextPurpose.COMMENTARY: events.CommentaryAppended,
}
"""The event that acknowledges a text of each purpose."""

_CLOSED: Final = Verdict(None, "", errors.USER_STOP, CloseCode.NORMAL)


class Live:
    """The machine of a Live session. It asks for a slot at its `session.start`, and keeps it to its end.

    `catalogue` returns the served pools, None while no worker is known. `new_token` returns random digits
    for ids. `unix` converts a time of the session's clock to Unix time.
    """

    drops_stale: ClassVar = True
    can_be_saved: ClassVar = True

    def __init__(
        self,
        session_id: str,
        limits: Limits,
        catalogue: Callable[[], Catalogue | None],
        new_token: Callable[[], str],
        unix: Callable[[float], float],
    ) -> None:
        self.state = State.CONNECTED
        self.is_over = False
        self._session_id = session_id
        self._limits = limits
        self._catalogue = catalogue
        self._unix = unix
        self._new_token = new_token
        self._ids = new_token()
        self._told = 0
        """The number of event ids used so far."""
        self._start_id: str | None = None
        """The client's id of its `session.start`."""
        self._settings: Settings | None = None
        self._resource: SessionResource | None = None
        self._conversation: Conversation | None = None
        self._interrupts = limits.interrupts_on_speech
        """Whether the adapter interrupts an answer when the user speaks over it, whatever the model does."""
        self._purposes: frozenset[TextPurpose] = frozenset()
        """The purposes of texts that the model reads."""
        self._flow = UnitFlow(limits, new_token)
        self._reading = Reading()
        self._deadlines = Deadlines(limits)
        self._events = events_window()
        self._errors = errors_window()
        self._speeches = 0
        """The number of speech pieces sent for transcription."""
        self._transcriptions = Transcriptions()
        self._terms = b""
        """A serialised `SavedTerms`; empty until the state is saved."""
        self._is_held = False
        """Whether reading from the client is stopped."""
        self._end: Verdict | None = None
        """The verdict with which the session ends after its speech."""
        self._end_at: float | None = None

    @property
    def is_waiting(self) -> bool:
        return self._conversation is None

    @property
    def held_bytes(self) -> int:
        if self.is_over:
            return 0
        waiting = self._conversation.held_bytes if self._conversation is not None else 0
        return self._flow.held_bytes + waiting + self._reading.held_bytes

    @property
    def deadline(self) -> float | None:
        if self.is_over:
            return None
        conversation, earliest = self._conversation, self._end_at
        playout_at = flow_at = None
        if conversation is not None:
            playout_at = None if conversation.is_congested else conversation.playout.due_at
            flow_at = self._flow.deadline if self._end is None else None
            if conversation.silence.due_at is not None and self._end is None and not self._flow.congested:
                flow_at = min(flow_at or conversation.silence.due_at, conversation.silence.due_at)
        for at in (self._deadlines.next_at, self._deadlines.idle_at, playout_at, flow_at):
            if at is not None and (earliest is None or at < earliest):
                earliest = at
        return earliest

    # ------------------------------------------------------------------------------------- the state

    def save(self, now: float, blobs: Blobs, *, has_journal: bool) -> bytes | None:
        conversation, settings, resource = self._conversation, self._settings, self._resource
        is_running = self.state is State.ACTIVE and has_journal
        if not is_running or conversation is None or settings is None or resource is None:
            return None
        if not self._terms:
            unit_s = self._flow.unit_s
            terms = SavedTerms(settings, resource, self._ids, self._interrupts, self._purposes, unit_s)
            self._terms = _ENCODER.encode(terms)
        saved = SavedLive(
            blobs.keep(self._terms),
            self._told,
            self._flow.save(now),
            self._deadlines.save(now),
            conversation.save(now, blobs),
            self._speeches,
            self._transcriptions.save(blobs),
            self._end,
            ago(self._end_at, now),
            self._flow.answers.verdict is not None,
        )
        return _ENCODER.encode(saved)

    def restore(self, state: bytes, blobs: Saved, now: float) -> list[Action]:
        saved = _DECODER.decode(state)
        self._terms = blobs[saved.terms]
        terms = _TERMS.decode(self._terms)
        self.state, self._settings, self._resource = State.ACTIVE, terms.settings, terms.resource
        self._ids, self._told = terms.ids, saved.told
        self._interrupts, self._purposes = terms.interrupts, terms.purposes
        self._flow = UnitFlow(self._limits, self._new_token, terms.unit_s)
        self._flow.restore(saved.flow, now)
        self._deadlines.restore(saved.deadlines, now)
        transcribes = saved.conversation.input_speech is not None
        self._conversation = self._new_conversation(terms.settings, transcribes)
        unscored = self._conversation.restore(saved.conversation, blobs, now)
        self._speeches = saved.speeches
        self._end, self._end_at = saved.end, None if saved.end_ago is None else now - saved.end_ago
        if saved.is_flow_over:
            self._flow.answers.verdict = saved.end
        awaited = self._transcriptions.restore(
            saved.awaited, blobs, lambda item: partial(self._transcribed, item.at_ms)
        )
        return [*([Detect(unscored)] if unscored.size else ()), *awaited]

    # -------------------------------------------------------------------------------------- the slot

    def opened(self, now: float) -> list[Action]:
        """Do nothing: a `session.start` may come much later, and only that takes a slot."""
        return []

    def queued(self, place: Place) -> list[Action]:
        if self.state is not State.QUEUED:
            return []
        wait = f"about {place.estimated_wait_s:.0f} s"
        message = f"no slot is free; place {place.position} of {place.queue_length}, {wait}"
        return [self._event(events.Info, self._start_id, code="queued", message=message)]

    def granted(self, now: float) -> list[Action]:
        if self._settings is None or self.state not in (State.QUEUED, State.CONFIGURING):
            return []
        if self.state is State.QUEUED:
            self._deadlines.granted(now)
            self._deadlines.settings_accepted()
        self.state = State.CONFIGURING
        setup = self._settings.setup
        able = capabilities_of(setup.model, self._catalogue())
        self._interrupts = self._limits.interrupts_on_speech and not able.yields
        is_congested = self._flow.congested
        self._flow = UnitFlow(self._limits, self._new_token, able.unit_ms / 1000)
        self._flow.congested = is_congested
        return [OpenWorkerSession(replace(setup, unit_ms=able.unit_ms))]

    def displaced(self) -> None:
        self._deadlines.leaves(None)

    def refused(self, verdict: Verdict) -> list[Action]:
        return self.ended(verdict)

    def signal(self, signal: Signal, now: float) -> list[Action]:
        if self.is_over:
            return []
        match signal:
            case Ready():
                return self._begun(signal, now)
            case GoingAway():
                self._deadlines.leaves(now + signal.time_left_s)
                return []
            case Failed():
                return self._worker_failed(signal.reason, now)
            case Moved():
                self._deadlines.leaves(None)
                return self._handle_steps(self._flow.signal(signal, now), now)
            case _:
                return self._handle_steps(self._flow.signal(signal, now), now)

    # ------------------------------------------------------------------------------------ the client

    def text_frame(self, frame: bytes, now: float, *, drops_input: bool = False) -> list[Action]:
        if self.is_over:
            return []
        if not self._events.allow(now):
            return self._conclude(self._events.flood)
        if len(frame) <= LARGE_FRAME:
            return self._take(_FRAMES.read(frame, drops_input), now)
        return self._reading.offload(len(frame), partial(_FRAMES.read, frame, drops_input), self._take)

    def binary_frame(self, now: float) -> list[Action]:
        return self.ended(errors.BINARY_FRAME)

    def congested(self, is_congested: bool, now: float) -> list[Action]:
        """Handle the start or end of back-pressure: the stream pauses, and so does the model."""
        self._flow.congested = is_congested
        if self._conversation is None:
            return []
        self._conversation.is_congested = is_congested
        return self._handle_steps(self._flow.advance(now), now)

    def withdrawn(self, sends: list[Send]) -> list[Action]:
        """Return nothing: `Withdraw` is never used, since droppable speech waits in the playout."""
        return []

    def slow_consumer(self) -> list[Action]:
        return self.ended(errors.SLOW)

    def disconnected(self) -> None:
        self.state, self.is_over = State.CLOSED, True

    def detected(self, scores: Sequence[float], now: float) -> list[Action]:
        """Handle speech scores: speech over an answer interrupts it."""
        conversation = self._conversation
        if self.is_over or conversation is None:
            return []
        actions = self._transcribe(scores, conversation)
        over = conversation.over(scores)
        if not over or not conversation.is_saying(self._flow):
            return actions
        conversation.speech.hear(over)
        if not conversation.speech.speaks:
            return actions
        conversation.stop()
        return [*actions, *self._handle_steps(self._flow.interrupt(), now)]

    def _transcribe(self, scores: Sequence[float], conversation: Conversation) -> list[Action]:
        """Return the actions that transcribe the user's speech up to a pause."""
        if conversation.input_speech is None:
            return []
        actions: list[Action] = []
        for said in conversation.input_speech.detected(scores):
            self._speeches += 1
            tell, name = partial(self._transcribed, said.at_ms), f"speech_{self._speeches}"
            actions.append(self._transcriptions.ask(name, said.audio, "", tell, said.at_ms))
        return actions

    def _transcribed(self, at_ms: int, news: InputTranscript, now: float) -> list[Action]:
        """Send words of the speech at `at_ms`; the protocol has no event for its end, nor for a failure."""
        if not isinstance(news, InputTranscriptDelta):
            return []
        start_ms, end_ms = (
            round((at_ms + seconds * 1000) / SLICE_MS) * SLICE_MS for seconds in (news.begin_s, news.end_s)
        )
        return [self._event(events.InputTranscriptDelta, delta=news.text, start_ms=start_ms, end_ms=end_ms)]

    # ---------------------------------------------------------------------------------------- time

    def tick(self, now: float, others_wait: bool) -> list[Action]:
        if self.is_over:
            return []
        verdict = self._deadlines.passed(now, "session.start", others_wait)
        if verdict is None and is_due(self._end_at, now):
            verdict = self._end
        if verdict is not None:
            return self._conclude(verdict)
        steps: list[Step | Detect] = []
        if self._conversation is not None and self._end is None:
            if is_due(self._flow.deadline, now):
                steps += self._hear(self._conversation.input_converter.rest(), now)
            steps += self._flow.tick(now)
            steps += self._feed_silence(self._conversation, now)
        return self._handle_steps(steps, now)

    def ended(self, verdict: Verdict) -> list[Action]:
        return [] if self.is_over else self._conclude(verdict)

    def shut_down(self) -> list[Action]:
        return self.ended(errors.SHUTTING_DOWN if self.is_waiting else errors.SERVER_SHUTDOWN)

    # ------------------------------------------------------------------------------ the state table

    def _take(self, event: ClientEvent | Fault, now: float) -> list[Action]:
        if self.is_over:
            return []
        if isinstance(event, Fault):
            if event.refusal is None:
                return self._conclude(errors.NOT_UTF8)
            told = self._refuse(event.refusal, event.event_id, now)
            return [*told, *self._close_unless_started(event.event_type)]
        try:
            return self._obey(event, now)
        except Refusal as refusal:
            told = self._refuse(refusal, event.event_id, now)
            return [
                *told,
                *self._close_unless_started("session.start" if isinstance(event, SessionStart) else None),
            ]

    def _close_unless_started(self, event_type: str | None) -> list[Action]:
        """Close the connection if `event_type` is a refused `session.start`."""
        if event_type != "session.start" or self.state is not State.CONNECTED or self.is_over:
            return []
        self.state, self.is_over = State.CLOSING, True
        return [CloseSocket(CloseCode.POLICY_VIOLATION, Code.NOT_STARTED)]

    def _obey(self, event: ClientEvent, now: float) -> list[Action]:
        if isinstance(event, SessionStart):
            return self._start(event)
        conversation = self._conversation
        if isinstance(event, SessionClose):
            return self._close(now)
        if conversation is None:
            raise Refusal(
                ErrorCode.NOT_READY,
                "the session has not started; send session.start and wait for session.started",
            )
        if self._end is not None:
            return []
        match event:
            case AudioAppend():
                return self._append(event, conversation, now)
            case AudioMute():
                conversation.is_muted = True
                conversation.silence.muted(True, now)
                return [self._event(events.AudioMuted, event.event_id)]
            case AudioUnmute():
                conversation.is_muted = False
                conversation.silence.muted(False, now)
                return [self._event(events.AudioUnmuted, event.event_id)]
            case InstructionsAppend() | ThinkingAppend() | CommentaryAppend():
                return self._tell_model(event, conversation, now)
            case SessionUpdate():
                return self._update(event)

    def _start(self, event: SessionStart) -> list[Action]:
        if self.state is not State.CONNECTED:
            message = "session.start was already sent; open another session for other settings"
            raise Refusal(ErrorCode.INVALID_EVENT, message)
        self._settings = read_settings(event.session, self._catalogue())
        self.state, self._start_id = State.QUEUED, event.event_id
        self._deadlines.settings_accepted()
        return [TakeSlot(self._settings.setup.model)]

    def _update(self, event: SessionUpdate) -> list[Action]:
        assert self._resource is not None
        if event.session is None:
            raise missing("session", "an object")
        refuse_triggers(event.session.triggers)
        if event.session.delegation is not None:
            self._resource.delegation = delegation(event.session.delegation)
            self._terms = b""
        told: list[Action] = [self._event(events.SessionUpdated, event.event_id, session=self._resource)]
        return [*told, *self._delegation_unused()] if event.session.delegation is not None else told

    def _delegation_unused(self) -> list[Action]:
        message = "the model delegates nothing: it calls no tools here"
        return [self._event(events.Info, code="delegation_unused", message=message)]

    def _tell_model(self, event: TextAppend, conversation: Conversation, now: float) -> list[Action]:
        """Give a text to the model, which reads it before the next unit; then acknowledge it."""
        purpose, texts = PURPOSES[type(event)], self._flow.texts
        if not event.content:
            raise missing("content", "a text")
        if event.delegation_id is not None:
            raise invalid("delegation_id", "expected null: nothing was delegated")
        text = StandaloneText(purpose, event.content, event.event_id)
        if text.size > MOST_BYTES:
            raise invalid("content", f"expected at most {MOST_BYTES} bytes")
        if purpose not in self._purposes:
            raise Unsupported("type", f"the model reads no {purpose} while it listens")
        if texts.is_full:
            raise invalid("content", f"{MOST_TEXTS} texts already wait for the next unit")
        texts.put(text)
        if purpose is TextPurpose.COMMENTARY:
            conversation.silence.wanted(now)
        return []

    def _close(self, now: float) -> list[Action]:
        if self._conversation is None:
            return self._conclude(_CLOSED)
        return self._drain(_CLOSED, now)

    def _append(self, event: AudioAppend, conversation: Conversation, now: float) -> list[Action]:
        if not event.audio:
            raise missing("audio", "base64 audio")
        most = conversation.most_bytes
        if isinstance(event.audio, CutBase64) and event.audio.data is None:
            undecoded = round(event.audio.size / conversation.input_converter.format.bytes_per_s * 16_000)
            steps = self._detect(conversation, conversation.lost(undecoded), is_over=False)
            steps += self._put(Clip(NO_AUDIO.samples, undecoded=undecoded), now)
            return self._handle_steps(steps, now)
        if len(event.audio) > most * LONGEST_TEXT:
            raise _too_long(self._limits.max_append_s)
        data = decode_base64(event.audio, "audio")
        if len(data) > most:
            raise _too_long(self._limits.max_append_s)
        hear = partial(conversation.hear, data)
        if len(data) <= LARGE_FRAME // 2:
            return self._listen(hear(), now)
        return self._reading.offload(len(data), hear, self._listen)

    def _listen(self, samples: Samples, now: float) -> list[Action]:
        if self.is_over:
            return []
        self._deadlines.idle_at = now + self._limits.duplex_idle_s
        if self._conversation is not None:
            self._conversation.silence.came(now)
        return self._handle_steps(self._hear(samples, now), now) if samples.size else []

    def _feed_silence(self, conversation: Conversation, now: float) -> list[Step | Detect]:
        """Feed a unit of silence if one is due because the client sends no audio."""
        silence = conversation.silence
        if not is_due(silence.due_at, now) or self._flow.congested:
            return []
        silence.fed(now, is_speaking=self._flow.answers.response_id is not None)
        self._deadlines.idle_at = now + self._limits.duplex_idle_s
        unit = np.zeros(round(self._flow.unit_s * INPUT_RATE_HZ), np.float32)
        return [*self._detect(conversation, unit, is_over=False), *self._put(Clip(unit), now)]

    def _hear(self, samples: Samples, now: float) -> list[Step | Detect]:
        """Pass the user's audio to the model; during an answer also detect barge-in."""
        conversation = self._conversation
        if conversation is None or not samples.size:
            return []
        is_quiet = not self._flow.waiting_s and conversation.playout.is_empty
        if conversation.upload.came(samples.size / INPUT_RATE_HZ, now, is_quiet=is_quiet):
            self._flow.keep_all()
        # Audio sent ahead of the clock was not spoken over the answer that plays now.
        is_over = conversation.is_saying(self._flow) and not self._flow.keeps_all
        is_over = is_over and self._interrupts
        if not is_over:
            conversation.speech = interruption()
        return [*self._detect(conversation, samples, is_over=is_over), *self._put(Clip(samples), now)]

    @staticmethod
    def _detect(conversation: Conversation, samples: Samples, *, is_over: bool) -> list[Step | Detect]:
        return [Detect(samples)] if samples.size and conversation.detecting(samples, is_over=is_over) else []

    def _put(self, clip: Clip, now: float) -> list[Step]:
        return self._flow.append(Append(clip, self._session_id), now)

    def _begun(self, ready: Ready, now: float) -> list[Action]:
        if self.state is not State.CONFIGURING or self._settings is None:
            return []
        self.state = State.ACTIVE
        self._purposes = ready.text_purposes
        catalogue = self._catalogue()
        transcribes = self._limits.input_transcript_s > 0 and catalogue is not None and catalogue.transcribes
        self._conversation = self._new_conversation(self._settings, transcribes)
        self._conversation.playout.begin(now)
        self._deadlines.idle_at = now + self._limits.duplex_idle_s
        limit_at = self._deadlines.limit_at
        expires_at = int(self._unix(limit_at if limit_at is not None else now + LONGEST_S))
        self._resource = self._settings.resource(self._session_id, expires_at)
        told: list[Action] = [self._event(events.SessionStarted, self._start_id, session=self._resource)]
        if self._settings.delegation is not None:
            told += self._delegation_unused()
        if voice := self._settings.replaced_voice:
            message = f"there is no voice {voice} here: the model speaks with its own"
            told.append(self._event(events.Info, code="voice_replaced", message=message))
        if self._settings.is_instructed and "system_prompt" in ready.ignored_fields:
            message = "the model reads no instructions: instructions and earlier messages have no effect"
            told.append(self._event(events.Info, code="instructions_unused", message=message))
        return [*told, *self._handle_steps(self._flow.begin(ready, now), now)]

    def _new_conversation(self, settings: Settings, transcribes: bool) -> Conversation:
        most_s = self._limits.max_append_s
        return Conversation(settings, most_s, transcribes=transcribes, unit_s=self._flow.unit_s)

    def _worker_failed(self, reason: Reason, now: float) -> list[Action]:
        if reason in errors.CORRECTABLE and self.state is State.CONFIGURING:
            told = self._refuse(errors.VERDICTS[reason].refusal(), self._start_id, now)
            self.state = State.CONNECTED
            return [*told, *self._close_unless_started("session.start")]
        return self._conclude(errors.lost(reason, is_going_away=self._deadlines.away_at is not None))

    # ----------------------------------------------------------------------------------------- output

    def _handle_steps(self, steps: Iterable[Step | Detect], now: float) -> list[Action]:
        """Turn steps of the flow into actions, send the audio that is due, and end a session that is over."""
        conversation = self._conversation
        if conversation is None:
            return []
        actions: list[Action] = []
        for step in steps:
            if isinstance(step, Answer):
                actions += self._answer(step, conversation, now)
                if self.is_over:
                    return actions
            elif not isinstance(step, Withdraw):
                actions.append(step)
        conversation.playout.is_speaking = self._flow.answers.response_id is not None
        if self._flow.answers.verdict is not None and self._end is None:
            actions += self._drain(self._flow.answers.verdict, now)
        if not conversation.is_congested:
            actions += self._play(conversation, now)
        actions += self._hold(conversation)
        if self._end is not None and conversation.playout.is_empty and not self._owes:
            actions += self._conclude(self._end)
        return actions

    def _hold(self, conversation: Conversation) -> list[Action]:
        """Stop reading from a client that is far ahead of the model, and continue when the model has
        caught up."""
        waits = max(self._flow.waiting_s / FULL_INPUT_S, conversation.playout.waiting_s / FULL_S)
        is_held = self._end is None and waits >= (EMPTIED if self._is_held else 1.0)
        if is_held == self._is_held:
            return []
        self._is_held = is_held
        return [HoldInput(is_held)]

    @property
    def _owes(self) -> bool:
        return self._flow.answers.verdict is None and self._flow.answers.owes

    def _answer(self, answer: Answer, conversation: Conversation, now: float) -> list[Action]:
        conversation.take(answer)
        actions: list[Action] = []
        if answer.outcome is Outcome.FAILED and answer.failure is not None:
            if not self._errors.allow(now):
                return self._conclude(self._errors.flood)
            code, message = answer.failure
            for event_id in [text.event_id for text in answer.unit.texts] or [None]:
                actions += self._refuse(Refusal(code, message), event_id, now)
        else:
            at = round(answer.index * self._flow.unit_s * 1000)
            for text in answer.unit.texts:
                actions.append(self._event(_APPENDED[text.purpose], text.event_id, start_ms=at, end_ms=at))
        unit_s = self._flow.unit_s
        if answer.index * unit_s // USAGE_S != (answer.index + 1) * unit_s // USAGE_S:
            actions.append(self._usage(conversation))
        return actions

    def _play(self, conversation: Conversation, now: float) -> list[Action]:
        told: list[Action] = []
        slice_s = conversation.playout.slice_s
        for piece in conversation.playout.take(now):
            for said in piece.words:
                shape, start_ms, end_ms = events.OutputTranscriptDelta, said.start_ms, said.end_ms
                told.append(self._event(shape, delta=said.text, start_ms=start_ms, end_ms=end_ms))
            answer = conversation.answers.popleft() if conversation.answers else None
            told.append(Send(events.OutputAudioDelta(delta=piece.audio), answer, audio_s=slice_s))
        return told

    def _usage(self, conversation: Conversation) -> Send:
        ratio = conversation.context_ratio
        window = events.ContextWindow(ratio) if ratio is not None else None
        return self._event(events.UsageUpdated, usage=conversation.usage, context_window=window)

    def _refuse(self, refusal: Refusal, event_id: str | None, now: float) -> list[Action]:
        if not self._errors.allow(now):
            return self._conclude(self._errors.flood)
        refusal = unserved(refusal)
        return [self._error(code_of(refusal), refusal.message, refusal.param, event_id)]

    def _error(self, code: Code, message: str, param: str | None = None, event_id: str | None = None) -> Send:
        return Send(events.error(code, message, self._new_id(), param, event_id))

    def _event(
        self, shape: type[events.LiveEvent], client_event_id: str | None = None, **fields: Any
    ) -> Send:
        return Send(shape(event_id=self._new_id(), client_event_id=client_event_id, **fields))

    def _new_id(self) -> str:
        self._told += 1
        return f"event_{self._ids}{self._told}"

    # -------------------------------------------------------------------------------------- endings

    def _drain(self, verdict: Verdict, now: float) -> list[Action]:
        """Finish the current speech; then, or after `DRAIN_S`, end the session."""
        if self._end is None:
            self._end, self._end_at = verdict, now + DRAIN_S
            return self._handle_steps([], now)
        return []

    def _conclude(self, verdict: Verdict) -> list[Action]:
        self.state, self.is_over = State.CLOSING, True
        told: list[Action] = []
        code = code_of_end(verdict)
        if code is None and self._conversation is None and verdict is not _CLOSED and verdict.message:
            code = Code.NOT_STARTED
        if code is not None:
            told.append(self._error(code, verdict.message))
        reason = reason_of(verdict)
        if reason is not None and self._resource is not None and self._conversation is not None:
            told.append(self._usage(self._conversation))
            usage = self._conversation.usage
            told.append(self._event(events.SessionClosed, reason=reason, session=self._resource, usage=usage))
        return [*told, closing(verdict)]


def _too_long(most_s: float) -> Refusal:
    return invalid("audio", f"expected at most {most_s:g} s at once")
