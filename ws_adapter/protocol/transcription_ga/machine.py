"""Transcription in the events of OpenAI's Realtime: a commit creates an item, and its words follow.

Commits are utterances of the underlying machine, which has the slot; its results are sent here as other
events.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from ws_adapter.protocol.core.actions import CloseSocket, Detect
from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.config import Catalogue
from ws_adapter.protocol.core.machine import Action, Become
from ws_adapter.protocol.core.reading import Reading
from ws_adapter.protocol.live.machine import LONGEST_S
from ws_adapter.protocol.realtime_ga.input_buffer import InputBuffer, ms_of
from ws_adapter.protocol.realtime_ga.listening import Listening, SpeechBegan
from ws_adapter.protocol.realtime_ga.saved.session import SavedBuffer, SavedListening
from ws_adapter.protocol.realtime_ga.wire import events as ga
from ws_adapter.protocol.realtime_ga.wire.client_events import AudioAppend, AudioClear, AudioCommit
from ws_adapter.protocol.realtime_ga.wire.event_factory import EventFactory
from ws_adapter.protocol.realtime_ga.wire.items import InputAudioContent, MessageItem
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied, End, code_of, end_of, opening_end
from ws_adapter.protocol.transcription.commands import Rejection
from ws_adapter.protocol.transcription.events import Code
from ws_adapter.protocol.transcription.machine import LOST, UNSERVED, Transcription
from ws_adapter.protocol.transcription.saved import SavedTranscription
from ws_adapter.protocol.transcription.utterance import MOST_AHEAD, Utterance
from ws_adapter.protocol.transcription_ga import events
from ws_adapter.protocol.transcription_ga.events import ClientEvent, SessionFields, SessionUpdate
from ws_adapter.protocol.transcription_ga.frames import FRAMES, speaks_ga
from ws_adapter.protocol.transcription_ga.settings import SavedSettings, Settings
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.codec import CutBase64, Samples, decode_base64
from ws_adapter.protocol.wire.errors import CloseCode, ErrorCode, Refusal, Verdict
from ws_adapter.protocol.wire.frames import Fault
from ws_adapter.protocol.wire.limits import LARGE_FRAME, Limits, events_window

_ENCODER: Final = msgspec.msgpack.Encoder()


class SavedTranscriptionGa(Struct, frozen=True):
    """The state of a `TranscriptionGa` beside its utterances."""

    ids: str
    told: int
    expires_at: int
    settings: SavedSettings
    buffer: SavedBuffer
    listening: SavedListening | None
    has_input: bool
    item_id: str
    last_id: str | None
    awaited: tuple[tuple[str, float], ...]


_DECODER: Final = msgspec.msgpack.Decoder(SavedTranscriptionGa)

_UNDECIDED: Final = b"undecided"
"""The suffix of the saved state of a session whose client has sent no frame yet."""

_SERVERS = frozenset({Code.PROCESSING_ERROR, Code.QUEUE_FULL, Code.SERVICE_UNAVAILABLE, Code.CONTEXT_FULL})


class TranscriptionGa(Transcription):
    """The machine of OpenAI's transcription, with the arguments of `Transcription`.

    `new_token` returns random digits for ids. `given` are initial settings that differ from the defaults.
    """

    def __init__(
        self,
        session_id: str,
        created: int,
        limits: Limits,
        catalogue: Callable[[], Catalogue | None],
        new_token: Callable[[], str],
        given: SessionFields | None = None,
    ) -> None:
        super().__init__(session_id, created, limits, catalogue)
        self._given = given
        self._factory = EventFactory(new_token)
        self._expires_at = created + int(LONGEST_S)
        self._settings = Settings()
        self._buffer = InputBuffer(self._settings.format)
        self._listening = self._new_listening()
        self._has_input = False
        self._item_id = ""
        """The id of the item for the user's open speech."""
        self._last_id: str | None = None
        self._awaited: deque[tuple[str, float]] = deque()
        """Items with pending transcripts, the current one first, and their seconds."""
        self._refuses_audio = False
        """Whether the client was told that its audio is not accepted."""
        self._reading = Reading()
        self._frames = events_window()

    def _save_dialect(self, blobs: Blobs) -> bytes:
        ids, told = self._factory.count
        saved = SavedTranscriptionGa(
            ids,
            told,
            self._expires_at,
            self._settings.save(),
            self._buffer.save(blobs),
            self._listening.save() if self._listening is not None else None,
            self._has_input,
            self._item_id,
            self._last_id,
            tuple(self._awaited),
        )
        return _ENCODER.encode(saved)

    def _restore_dialect(self, state: bytes, blobs: Saved) -> list[Action]:
        saved = _DECODER.decode(state)
        self._factory.go_on(saved.ids, saved.told)
        self._expires_at, self._settings = saved.expires_at, Settings.restored(saved.settings)
        self._buffer = InputBuffer(self._settings.format)
        self._buffer.restore(saved.buffer, blobs)
        self._has_input, self._item_id, self._last_id = saved.has_input, saved.item_id, saved.last_id
        self._awaited = deque(saved.awaited)
        self._listening = None
        if saved.listening is None:
            return []
        self._listening = Listening.restored(saved.listening, self._buffer)
        unscored = self._listening.unscored
        return [Detect(unscored)] if unscored.size else []

    @property
    def held_bytes(self) -> int:
        held = super().held_bytes
        return 0 if self.is_over else held + self._buffer.held_bytes + self._reading.held_bytes

    def opened(self, now: float) -> list[Action]:
        try:
            self._change(Settings.initial(self._given, self._catalogue()))
        except Refusal as refusal:
            return self._conclude(opening_end(refusal))
        session = self._settings.resource(self._session_id, self._expires_at)
        return [
            self._factory.event(
                events.SessionCreated, id=self._session_id, created=self._created, session=session
            )
        ]

    # ------------------------------------------------------------------------------------ the client

    def text_frame(self, frame: bytes, now: float, *, drops_input: bool = False) -> list[Action]:
        if self.is_over:
            return []
        if not self._frames.allow(now):
            return self.ended(self._frames.flood)
        take = partial(self._take, len(frame))
        if len(frame) <= LARGE_FRAME:
            return take(FRAMES.read(frame, drops_input), now)
        return self._reading.offload(len(frame), partial(FRAMES.read, frame, drops_input), take)

    def binary_frame(self, now: float) -> list[Action]:
        refusal = Denied(ga.Code.INVALID_EVENT, errors.BINARY_FRAME.message)
        return [] if self.is_over else self._refuse(refusal, None, now)

    def _take(self, size: int, event: ClientEvent | Fault, now: float) -> list[Action]:
        if self.is_over:
            return []
        if isinstance(event, Fault):
            if event.refusal is None:
                return self._conclude(end_of(errors.NOT_UTF8))
            return self._refuse(event.refusal, event.event_id, now)
        try:
            return self._follow(event, size, now)
        except Refusal as refusal:
            return self._refuse(refusal, event.event_id, now)

    def _follow(self, event: ClientEvent, size: int, now: float) -> list[Action]:
        match event:
            case AudioAppend():
                return self._append(event, size, now)
            case SessionUpdate():
                return self._update(event)
            case AudioCommit():
                return [*self._commit_all(now), *self._advance(now)]
            case AudioClear():
                return self._clear()
        raise Denied(None, "a transcription session has no responses; connect with ?model= to converse")

    def _update(self, event: SessionUpdate) -> list[Action]:
        assert event.session is not None
        self._change(self._settings.changed(event.session, self._catalogue(), has_input=self._has_input))
        session = self._settings.resource(self._session_id, self._expires_at)
        return [self._factory.event(events.SessionUpdated, session=session)]

    def _change(self, new: Settings) -> None:
        old, self._settings = self._settings, new
        if new.format != old.format:
            self._buffer = InputBuffer(new.format)
        if new.vad != old.vad:
            self._item_id, self._listening = "", self._new_listening()

    def _append(self, event: AudioAppend, size: int, now: float) -> list[Action]:
        assert event.audio is not None
        was_refused, self._refuses_audio = self._refuses_audio, True
        try:
            if isinstance(event.audio, CutBase64) and event.audio.data is None:
                raise Refusal(ErrorCode.SERVICE_UNAVAILABLE, errors.OVERLOADED.message)
            data = decode_base64(event.audio, "audio")
            self._buffer.check_room(len(data))
        except Refusal:
            if was_refused:
                return []  # the client was told before, and audio comes continuously
            raise
        self._refuses_audio = False
        self._has_input = True
        append = partial(self._buffer.append, data)
        if size <= LARGE_FRAME:
            return self._heard(append(), now)
        return self._reading.offload(size, append, self._heard)

    def _heard(self, samples: Samples, now: float) -> list[Action]:
        is_needed = not self.is_over and self._listening is not None and samples.size
        return [Detect(samples)] if is_needed else []

    def _clear(self) -> list[Action]:
        if self._listening is None:
            self._buffer.clear()
        else:
            self._buffer.forget(self._buffer.end)
            self._item_id, self._listening = "", self._new_listening()
        return [self._factory.event(ga.AudioCleared)]

    # --------------------------------------------------------------------------------------- the items

    def detected(self, scores: Sequence[float], now: float) -> list[Action]:
        if self.is_over or self._listening is None:
            return []
        actions: list[Action] = []
        for edge in self._listening.hear(scores):
            if isinstance(edge, SpeechBegan):
                self._item_id = self._factory.new_id("item")
                self._buffer.forget(edge.at)
                fields = {"audio_start_ms": ms_of(edge.at), "item_id": self._item_id}
                actions.append(self._factory.event(ga.SpeechStarted, **fields))
            else:
                fields = {"audio_end_ms": ms_of(edge.at), "item_id": self._item_id}
                actions.append(self._factory.event(ga.SpeechStopped, **fields))
                try:
                    actions += self._commit(self._buffer.take(edge.at), now)
                except Refusal as refusal:  # no event of the client caused it
                    actions += self._refuse(refusal, None, now)
        return [*actions, *self._advance(now)]

    def _commit_all(self, now: float) -> list[Action]:
        """Commit the input as one turn of the user."""
        if len(self._awaited) >= MOST_AHEAD:
            raise Denied(ga.Code.BUFFER_FULL, f"at most {MOST_AHEAD} items may wait for their transcripts")
        data = self._buffer.take_all() if self._listening is None else self._buffer.take_whole()
        self._listening = self._new_listening()
        return self._commit(data, now)

    def _commit(self, data: bytes, now: float) -> list[Action]:
        """Return the actions that commit float32 at 16 kHz as an item, with a pending transcript if one is
        requested."""
        item_id, self._item_id = self._item_id or self._factory.new_id("item"), ""
        if self._settings.transcribes:
            self._await(item_id, data, now)
        item = MessageItem(
            id=item_id, status="completed", role="user", content=[InputAudioContent(transcript=None)]
        )
        before, self._last_id = self._last_id, item_id
        return [
            self._factory.event(ga.AudioCommitted, previous_item_id=before, item_id=item_id),
            self._factory.event(ga.ItemAdded, previous_item_id=before, item=item),
            self._factory.event(ga.ItemDone, previous_item_id=before, item=item),
        ]

    def _await(self, item_id: str, data: bytes, now: float) -> None:
        samples = np.frombuffer(data, "<f4")
        pcm = np.clip(samples * 32_768, -32_768, 32_767).astype("<i2").tobytes()
        try:
            self._utterances.choose(self._settings.worker_model)
            self._utterances.hear(pcm, now)
            self._utterances.commit(now, is_final=True)
        except Rejection as rejection:
            raise Denied(ga.Code.BUFFER_FULL, rejection.event.error) from None
        self._heard_at = now
        self._awaited.append((item_id, samples.size / 16_000))

    def _new_listening(self) -> Listening | None:
        vad = self._settings.vad
        return Listening(vad, self._buffer) if vad is not None else None

    # ------------------------------------------------------------------------------------ the events

    def _tell_text(self, text: str) -> list[Action]:
        item_id, _ = self._awaited[0]
        return [self._factory.event(ga.TranscriptionDelta, item_id=item_id, content_index=0, delta=text)]

    def _tell_done(self, utterance: Utterance) -> list[Action]:
        item_id, seconds = self._awaited.popleft()
        usage, transcript = ga.Duration(seconds=round(seconds, 3)), utterance.text
        fields = {"item_id": item_id, "content_index": 0, "transcript": transcript, "usage": usage}
        return [self._factory.event(ga.TranscriptionCompleted, **fields)]

    def _tell_cut(self, utterance: Utterance) -> list[Action]:
        return []

    def _tell_timed_out(self) -> list[Action]:
        return []

    def _tell_failure(self, code: Code, message: str) -> list[Action]:
        item_id, _ = self._awaited.popleft()
        kind = "server_error" if code in _SERVERS else "invalid_request_error"
        failure = ga.Failure(type=kind, code=code, message=message.partition(";")[0])
        return [self._factory.event(ga.TranscriptionFailed, item_id=item_id, content_index=0, error=failure)]

    def refused(self, verdict: Verdict) -> list[Action]:
        """Fail the current item, because there is no slot; the next item asks for another slot."""
        if self.is_over or self._utterances.current is None:
            return []
        self._slot.forget()
        lost = (Code.PROCESSING_ERROR, LOST)
        code, why = UNSERVED.get(verdict.code, lost) if verdict.code is not None else lost
        return [*self._fail(code, why), *self._advance(self._heard_at)]

    def _refuse(self, refusal: Refusal, event_id: str | None, now: float) -> list[Action]:
        if not self._errors.allow(now):
            return self.ended(self._errors.flood)
        return [self._factory.error(code_of(refusal), refusal.message, refusal.param, event_id)]

    # -------------------------------------------------------------------------------------- endings

    def slow_consumer(self) -> list[Action]:
        return self.ended(errors.SLOW)

    def ended(self, verdict: Verdict) -> list[Action]:
        return [] if self.is_over else self._conclude(end_of(verdict))

    def shut_down(self) -> list[Action]:
        return self.ended(errors.SERVER_SHUTDOWN)

    def _close(self, code: CloseCode, reason: str) -> list[Action]:
        return self._conclude(end_of(errors.SERVER_SHUTDOWN))

    def _conclude(self, end: End) -> list[Action]:
        self.is_over = True
        told: list[Action] = []
        if end.code is not None:
            told.append(self._factory.error(end.code, end.message))
        return [*told, CloseSocket(end.close, end.reason)]


class ProtocolChooser(Transcription):
    """The choice between the two protocols of `?intent=transcription`, made by a client's first frame."""

    def __init__(
        self,
        session_id: str,
        created: int,
        limits: Limits,
        catalogue: Callable[[], Catalogue | None],
        new_token: Callable[[], str],
    ) -> None:
        super().__init__(session_id, created, limits, catalogue)
        self._other: TranscriptionGa | None = TranscriptionGa(
            session_id, created, limits, catalogue, new_token
        )

    def opened(self, now: float) -> list[Action]:
        assert self._other is not None
        return self._other.opened(now)

    def _save_dialect(self, blobs: Blobs) -> bytes:
        return self._other._save_dialect(blobs) + _UNDECIDED if self._other is not None else b""

    def restore(self, state: bytes, blobs: Saved, now: float) -> list[Action]:
        """Go on from a saved state, in the protocol that the client used with the previous adapter."""
        other, self._other = self._other, None
        dialect = msgspec.msgpack.decode(state, type=SavedTranscription).dialect
        if other is None or not dialect:
            return super().restore(state, blobs, now)
        if dialect.endswith(_UNDECIDED):
            other._restore_dialect(dialect.removesuffix(_UNDECIDED), blobs)
            self._other = other
            return super().restore(state, blobs, now)
        return [Become(other), *other.restore(state, blobs, now)]

    def text_frame(self, frame: bytes, now: float, *, drops_input: bool = False) -> list[Action]:
        other, self._other = self._other, None
        if other is None or self.is_over or len(frame) > LARGE_FRAME or not speaks_ga(frame):
            return super().text_frame(frame, now, drops_input=drops_input)
        return [Become(other), *other.text_frame(frame, now, drops_input=drops_input)]
