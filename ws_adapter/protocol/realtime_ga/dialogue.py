"""A session from `session.created` on: its settings, input, items and responses."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from ws_adapter.protocol.core.actions import CancelTranscription, Detect, Note
from ws_adapter.protocol.core.blobs import Blobs, Saved, ago
from ws_adapter.protocol.core.config import Catalogue
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.core.speech import RATE_HZ
from ws_adapter.protocol.core.transcription import InputTranscript, InputTranscriptDone
from ws_adapter.protocol.core.transcriptions import Transcriptions
from ws_adapter.protocol.core.turn import Message, Speech
from ws_adapter.protocol.realtime_ga.answers import Answers
from ws_adapter.protocol.realtime_ga.conversation import MOST_BYTES, Conversation, Entry, copied
from ws_adapter.protocol.realtime_ga.input_buffer import InputBuffer, ms_of
from ws_adapter.protocol.realtime_ga.listening import Listening, SpeechBegan
from ws_adapter.protocol.realtime_ga.native import Native
from ws_adapter.protocol.realtime_ga.response import Response
from ws_adapter.protocol.realtime_ga.response_settings import NOTHING_DIFFERENT, response_settings
from ws_adapter.protocol.realtime_ga.saved.session import SavedDialogue
from ws_adapter.protocol.realtime_ga.settings import Settings, vad_of
from ws_adapter.protocol.realtime_ga.wire import events, input_transcripts, resources
from ws_adapter.protocol.realtime_ga.wire.client_events import (
    ItemCreate,
    ItemDelete,
    ItemTruncate,
    ResponseCancel,
    ResponseFields,
    SessionUpdate,
)
from ws_adapter.protocol.realtime_ga.wire.event_factory import EventFactory
from ws_adapter.protocol.realtime_ga.wire.events import Code, type_of
from ws_adapter.protocol.realtime_ga.wire.fields import SemanticVad, ServerVad
from ws_adapter.protocol.realtime_ga.wire.items import CallOutputItem, InputAudioContent, MessageItem
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied
from ws_adapter.protocol.realtime_ga.wire.resources import ResponseError
from ws_adapter.protocol.wire.codec import Samples
from ws_adapter.protocol.wire.errors import Refusal, invalid
from ws_adapter.protocol.wire.faults import shown
from ws_adapter.protocol.wire.limits import Limits

OVERSHOOT_MS: Final = 100
"""The tolerance for a reported end of playback after the actual one: clocks differ."""


_TOOLS_IGNORED: Final = Note("tools ignored: the model calls none, so session.tools stays empty")

_TAIL_BYTES: Final = 4096
"""The bytes that a resampler may still hold back at the end of audio."""


class Dialogue:
    """A running session. A method that raises `Refusal` has changed nothing."""

    def __init__(
        self,
        session_id: str,
        settings: Settings,
        expires_at: int,
        factory: EventFactory,
        answers: Answers,
        catalogue: Callable[[], Catalogue | None],
        limits: Limits,
    ) -> None:
        self.settings = settings
        self._limits = limits
        self.buffer = self._new_buffer(settings)
        self.conversation = Conversation(factory.new_id("conv"), settings.retention_ratio)
        self.idle_at: float | None = None
        """The time at which the model speaks again if the user stays silent."""
        self._session_id = session_id
        self._expires_at = expires_at
        self._factory = factory
        self._answers = answers
        self._catalogue = catalogue
        self._has_input = False
        self.native = self._new_native(settings)
        """The native turns of a model that takes turns by itself."""
        self._listening = self._new_listening()
        self._item_id = ""
        """The id of the item for the current turn of the user."""
        self._has_prompted = False
        """Whether the model's last turn was caused by the user's silence."""
        self._has_transcribed = False
        """Whether a transcript was ever requested."""
        self._transcriptions = Transcriptions()
        self._owes_answer = False
        """Whether a turn has ended that is answered after the current response."""

    def save(
        self, responses: Sequence[Response], now: float, blobs: Blobs, *, has_journal: bool
    ) -> SavedDialogue:
        """Return the state; `responses` and `has_journal` are those of `Native.save`."""
        native, listening = self.native, self._listening
        return SavedDialogue(
            blobs.keep(self.settings.save()),
            self._expires_at,
            self.buffer.save(blobs),
            self.conversation.save(blobs),
            ago(self.idle_at, now),
            self._has_input,
            native.save(responses, now, blobs, has_journal=has_journal) if native is not None else None,
            listening.save() if listening is not None else None,
            self._item_id,
            self._has_prompted,
            self._has_transcribed,
            self._transcriptions.save(blobs),
            self._owes_answer,
        )

    def restore(self, saved: SavedDialogue, blobs: Saved, now: float) -> list[Action]:
        """Go on from a saved state with the same settings. `Native.restore` restores the model's own turns.

        Raises `ValueError` or `KeyError`.
        """
        self.buffer.restore(saved.buffer, blobs)
        self.conversation = Conversation.restored(saved.conversation, blobs)
        self.native = self._new_native(self.settings)
        self.idle_at = None if saved.idle_ago is None else now - saved.idle_ago
        self._has_input, self._item_id = saved.has_input, saved.item_id
        self._has_prompted, self._has_transcribed = saved.has_prompted, saved.has_transcribed
        self._owes_answer = saved.owes_answer
        actions: list[Action] = list(
            self._transcriptions.restore(
                saved.awaited, blobs, lambda item: partial(self._transcribed, item.item_id)
            )
        )
        self._listening = None
        if saved.listening is not None:
            self._listening = Listening.restored(saved.listening, self.buffer)
            unscored = self._listening.unscored
            actions += [Detect(unscored)] if unscored.size else []
        return actions

    def created(self) -> list[Action]:
        """Return the first events."""
        session = self.settings.resource(self._session_id, self._expires_at)
        conversation = resources.Conversation(id=self.conversation.id)
        return [
            self._factory.event(events.SessionCreated, session=session),
            self._factory.event(events.ConversationCreated, conversation=conversation),
        ]

    def update(self, event: SessionUpdate, now: float) -> list[Action]:
        """Change the settings."""
        assert event.session is not None
        old = self.settings
        can_take_turns = self._answers.is_idle and not self.conversation.has_unwritten_speech
        new = old.changed(
            event.session,
            self._catalogue(),
            has_spoken=self.has_spoken,
            has_input=self._has_input,
            can_take_turns=self.native is not None or can_take_turns,
        )
        self.settings = new
        self.conversation.ratio = new.retention_ratio
        if self.settings.input_format != old.input_format:
            self.buffer = self._new_buffer(self.settings)
        if self.settings.turn_detection != old.turn_detection:
            self.idle_at = None
            self._listen_anew()
        actions = self._change_native(now)
        session = self.settings.resource(self._session_id, self._expires_at)
        actions.append(self._factory.event(events.SessionUpdated, session=session))
        return [*actions, *([_TOOLS_IGNORED] if event.session.tools and not new.fields.tools else [])]

    @property
    def has_spoken(self) -> bool:
        """Whether the model's voice was used."""
        return self._answers.has_spoken or (self.native is not None and self.native.has_spoken)

    @property
    def user_speaks(self) -> bool:
        """Whether the user speaks, according to the VAD."""
        return self._listening is not None and self._listening.is_speech

    def _listen_anew(self) -> None:
        """Restart speech detection with the current settings; detection with equal settings keeps its
        state."""
        listening, new = self._listening, self._new_listening()
        if listening is not None and new is not None and listening.detects_as(new.vad):
            listening.vad = new.vad
        else:
            self._listening = new

    @staticmethod
    def _new_buffer(settings: Settings) -> InputBuffer:
        return InputBuffer(settings.input_format, settings.abilities.unit_ms / 1000)

    def _new_native(self, settings: Settings) -> Native | None:
        if not isinstance(settings.turn_detection, SemanticVad):
            return None
        return Native(settings, self.conversation, self._factory, self._limits)

    def _change_native(self, now: float) -> list[Action]:
        """Apply the settings of turn detection to the model, which gets the uncommitted input."""
        native = self.native
        if native is not None and isinstance(self.settings.turn_detection, SemanticVad):
            native.change(self.settings)
        elif native is not None:
            self.native = None
            self._answers.has_spoken |= native.has_spoken
            return native.interrupt("client_cancelled")
        elif made := self._new_native(self.settings):
            self.native = made
            held = self.buffer.samples
            return [*made.hear(held, now), *(made.user_began(held, now) if self.user_speaks else ())]
        return []

    # ------------------------------------------------------------------------------ the user's audio

    def check_audio(self, size: int) -> None:
        """Raise `Refusal` if `size` bytes of audio cannot be taken."""
        if not self.settings.abilities.hears:
            raise invalid("audio", "the model cannot hear; send text")
        self.buffer.check_room(size)
        if self.native is not None and not self.native.is_away:
            self.native.check_room(size * RATE_HZ // self.buffer.format.bytes_per_s)

    def heard(self, samples: Samples, now: float) -> list[Action]:
        """Handle audio that was appended to the buffer."""
        self._has_input = True
        if not samples.size:
            return []
        actions = self.native.hear(samples, now) if self.native is not None else []
        return [*actions, Detect(samples)] if self._listening is not None else actions

    def detected(self, scores: Sequence[float], now: float) -> list[Action]:
        """Handle detected speech and its end."""
        if self._listening is None:
            return []
        actions: list[Action] = []
        for edge in self._listening.hear(scores):
            if isinstance(edge, SpeechBegan):
                actions += self._speech_started(edge.at, now)
            else:
                actions += self._speech_stopped(edge.at, now)
        return actions

    def _speech_started(self, at: int, now: float) -> list[Action]:
        self.idle_at, self._has_prompted = None, False
        self._item_id = self._factory.new_id("item")
        self.buffer.forget(at)
        actions: list[Action] = [
            self._factory.event(events.SpeechStarted, audio_start_ms=ms_of(at), item_id=self._item_id)
        ]
        vad, active = self._vad, self._answers.active
        if vad is not None and vad.interrupt_response:
            if self.native is not None and not self.settings.abilities.yields:
                actions += self.native.interrupt("turn_detected")
            if active is not None:
                actions += self._answers.cancel(active, "turn_detected")
        if self.native is not None:
            actions += self.native.user_began(self.buffer.samples, now)
        return actions

    def _speech_stopped(self, at: int, now: float) -> list[Action]:
        item_id, self._item_id = self._item_id, ""
        actions: list[Action] = [
            self._factory.event(events.SpeechStopped, audio_end_ms=ms_of(at), item_id=item_id)
        ]
        try:
            actions += self._commit(self.buffer.take(at), item_id)
        except Refusal as refusal:  # no event of the client caused it
            code = refusal.name if isinstance(refusal, Denied) else None
            return [*actions, self._factory.error(code, refusal.message)]
        if self.native is not None and self.native.is_away:
            self.native.user_was_answered()
            self._owes_answer = True
        elif self._vad is not None and self._vad.create_response:
            self._owes_answer = True
        return actions

    def commit(self) -> list[Action]:
        """Commit the input as one turn of the user."""
        item_id, listening = self._item_id or self._factory.new_id("item"), self._listening
        self.conversation.admit(self.buffer.held_bytes + _TAIL_BYTES)
        data = self.buffer.take_all() if listening is None else self.buffer.take_whole()
        self._item_id, self._listening = "", self._new_listening()
        return self._commit(data, item_id)

    def clear(self) -> list[Action]:
        """Clear the uncommitted input."""
        if self._listening is None:
            self.buffer.clear()
        else:
            self.buffer.forget(self.buffer.end)
            self._item_id, self._listening = "", self._new_listening()
        return [self._factory.event(events.AudioCleared)]

    def timed_out(self) -> list[Action]:
        """Let the model speak again after a silence of the user."""
        self.idle_at, self._has_prompted = None, True
        item_id, begin, end = self._factory.new_id("item"), self.buffer.begin, self.buffer.end
        fields = {"audio_start_ms": ms_of(begin), "audio_end_ms": ms_of(end), "item_id": item_id}
        actions: list[Action] = [self._factory.event(events.TimeoutTriggered, **fields)]
        try:
            actions += self._commit(self.buffer.take(end), item_id)
        except Refusal as refusal:
            return [*actions, self._factory.error(None, refusal.message)]
        self._owes_answer = True
        return actions

    def _commit(self, data: bytes, item_id: str) -> list[Action]:
        """Return the actions that commit audio as an item. Raises `Refusal` if there is no room for it."""
        self.conversation.admit(len(data))
        item = MessageItem(
            id=item_id, status="completed", role="user", content=[InputAudioContent(transcript=None)]
        )
        before = self.conversation.last_id
        committed = self._factory.event(events.AudioCommitted, previous_item_id=before, item_id=item_id)
        actions = [committed, *self._add(Entry(item, (Speech(data),) if data else ()))]
        if self.settings.transcribes:
            self._has_transcribed = True
            tell = partial(self._transcribed, item_id)
            model = self.settings.transcription_model
            actions.append(self._transcriptions.ask(item_id, data, model, tell))
        return actions

    def _transcribed(self, item_id: str, news: InputTranscript, now: float) -> list[Action]:
        """Handle a transcription result; its item may have been dropped meanwhile."""
        if isinstance(news, InputTranscriptDone) and item_id in self.conversation:
            self.conversation.find(item_id, Code.RETRIEVE_UNKNOWN).transcribe(news.text)
        return [input_transcripts.transcript_event(self._factory, item_id, news)]

    @property
    def _vad(self) -> ServerVad | None:
        return self._listening.vad if self._listening is not None else None

    def _new_listening(self) -> Listening | None:
        vad = self.settings.turn_detection
        if isinstance(vad, SemanticVad):
            vad = structs.replace(vad_of(vad), create_response=False)  # speech is only reported
        return Listening(vad, self.buffer) if vad is not None else None

    # -------------------------------------------------------------------------------- the conversation

    def create_item(self, event: ItemCreate, entry: Entry) -> list[Action]:
        """Add a client's item, which was read as `entry`."""
        item = entry.item
        if item.id in self.conversation:
            message = f"item.id: there is an item {shown(item.id)} in the conversation"
            raise Denied(Code.DUPLICATE_ITEM, message, "item.id")
        if isinstance(item, CallOutputItem) and not self.conversation.has_call(item.call_id):
            raise invalid("item.call_id", f"the model has not made a call {shown(item.call_id)}")
        if entry.size > MOST_BYTES:
            raise invalid("item", f"expected at most {MOST_BYTES // 2**20} MiB, got more")
        self.conversation.admit(entry.size)
        if self.native is not None and isinstance(item, MessageItem) and item.role == "system":
            self.native.tell(" ".join(part for part in entry.parts if isinstance(part, str)))
        elif self.native is not None:
            self.native.expire_prompt()
        return self._add(entry, event.previous_item_id or None)

    def _add(self, entry: Entry, after: str | None = None) -> list[Action]:
        self.conversation.add(entry, after)
        self._has_input = True
        before = self.conversation.before(entry.item.id)
        return [
            self._factory.event(shape, previous_item_id=before, item=copied(entry.item))
            for shape in (events.ItemAdded, events.ItemDone)
        ]

    def truncate(self, event: ItemTruncate) -> list[Action]:
        """Truncate an answer to the part that the user has heard."""
        assert event.item_id is not None
        assert event.content_index is not None
        assert event.audio_end_ms is not None
        fields = {name: getattr(event, name) for name in ("item_id", "content_index", "audio_end_ms")}
        if self.conversation.has_dropped(event.item_id):
            return [self._factory.event(events.ItemTruncated, **fields)]
        entry = self.conversation.find(event.item_id, Code.TRUNCATE_UNKNOWN)
        if entry.transcript is None:
            raise Denied(None, "Only model output audio messages can be truncated", "item_id")
        if event.content_index != 0:
            raise invalid("content_index", f"expected 0, got {event.content_index}")
        if event.audio_end_ms > entry.transcript.ms + OVERSHOOT_MS:
            what = f"Audio content of {entry.transcript.ms}ms is already shorter than {event.audio_end_ms}ms"
            raise Denied(Code.INVALID_VALUE, what, "audio_end_ms")
        entry.truncate(event.audio_end_ms)
        back: list[Action] = []
        if self.native is not None and self.native.knows(event.item_id):
            back = self.native.rewind(event.item_id, event.audio_end_ms)
        elif self.native is not None:
            self.native.expire_prompt()
        return [*back, self._factory.event(events.ItemTruncated, **fields)]

    def delete(self, event: ItemDelete) -> list[Action]:
        """Delete an item."""
        assert event.item_id is not None
        self.conversation.delete(event.item_id)
        self._transcriptions.forget(event.item_id)
        if self.native is not None:
            self.native.expire_prompt()
        deleted = self._factory.event(events.ItemDeleted, item_id=event.item_id)
        return [CancelTranscription(event.item_id), deleted] if self._has_transcribed else [deleted]

    # ----------------------------------------------------------------------------------- the answers

    def respond(self, fields: ResponseFields, input: list[Message] | None) -> list[Action]:
        """Create a response with the client's fields; `input` is the result of `read_input`."""
        spoken = self.native.active if self.native is not None else None
        self._answers.check(is_out_of_band=fields.conversation == "none", spoken=spoken)
        asked = response_settings(
            fields,
            input,
            self.settings,
            self.conversation,
            self._catalogue(),
            has_spoken=self.has_spoken,
        )
        if not self.settings.abilities.chats:
            message = "the model holds no chats: it takes its turns by itself, when it hears the user"
            response = Response(asked, self._factory)
            error = ResponseError(type_of(Code.UNSUPPORTED), Code.UNSUPPORTED, message)
            return [*response.created(), *response.failed(error)]
        if asked.conversation is not None:
            self._owes_answer, self.idle_at = False, None
            self.conversation.admit(0)
        return self._answers.create(Response(asked, self._factory))

    def cancel(self, event: ResponseCancel) -> list[Action]:
        """Cancel a response."""
        spoken = self.native.active if self.native is not None else None
        if self.native is not None and spoken is not None and event.response_id in (None, spoken.id):
            return self.native.interrupt("client_cancelled")
        response = self._answers.find(event.response_id)
        if response is None:
            raise Denied(Code.CANCEL_NOT_ACTIVE, "Cancellation failed: no active response found")
        return self._answers.cancel(response, "client_cancelled")

    def answer_turn(self) -> list[Action]:
        """Answer a turn that ended while the model could not answer."""
        if not self._owes_answer or self._answers.active is not None:
            return []
        self._owes_answer = False
        try:
            return self.respond(NOTHING_DIFFERENT, None)
        except Refusal as refusal:
            return [self._factory.error(Code.CONVERSATION_FULL, refusal.message)]

    def answered(self, now: float) -> None:
        """Handle the end of a response: the user's idle time begins when it has been heard."""
        listening = self._listening
        if listening is None or listening.is_speech or self._has_prompted:
            return
        if timeout_ms := listening.vad.idle_timeout_ms:
            assert isinstance(timeout_ms, int)
            self.idle_at = max(now, self._answers.plays_until) + timeout_ms / 1000
