"""One response: its events from `response.created` to `response.done`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from msgspec import UNSET, UnsetType

from ws_adapter.protocol.core.actions import Send
from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.config import ChatSetup, WorkerSetup
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.core.saved_turn import save_turn, turn_of
from ws_adapter.protocol.core.signals import CallDelta, Finish, Piece, Prefilled, UnitDone, UnitEnd
from ws_adapter.protocol.core.turn import Turn
from ws_adapter.protocol.live.sound import Format, OutputConverter
from ws_adapter.protocol.realtime_ga.conversation import Conversation, Entry, copied
from ws_adapter.protocol.realtime_ga.saved.items import SavedResponse
from ws_adapter.protocol.realtime_ga.settings import told_format
from ws_adapter.protocol.realtime_ga.transcript import Transcript
from ws_adapter.protocol.realtime_ga.wire import events
from ws_adapter.protocol.realtime_ga.wire.event_factory import EventFactory
from ws_adapter.protocol.realtime_ga.wire.items import CallItem, Item, MessageItem, Spoken, Status, Written
from ws_adapter.protocol.realtime_ga.wire.resources import (
    CachedTokens,
    InputTokens,
    Modality,
    OutputTokens,
    ResponseAudio,
    ResponseError,
    ResponseOutput,
    ResponseResource,
    StatusDetails,
    Usage,
)
from ws_adapter.protocol.wire.events import NO_TOKENS, InputTokenDetails, TokenUsage


@dataclass(frozen=True)
class ResponseSettings:
    """The settings of a response. `conversation` is the one that it joins; None: it joins none."""

    turn: Turn
    setup: WorkerSetup
    modality: Modality
    format: Format
    voice: str
    max_output_tokens: int | str
    conversation: Conversation | None
    metadata: dict[str, str] | None = None
    shorter: Callable[[], Turn | None] = lambda: None
    """A function that returns the turn with less of the conversation, None if that is impossible."""


class Response:
    """The events of a response, in the order of the protocol; `end` returns the last of them."""

    def __init__(self, asked: ResponseSettings, factory: EventFactory) -> None:
        self.asked = asked
        self.id = factory.new_id("resp")
        self.turn = asked.turn
        self.is_over = False
        self.has_spoken = False
        """Whether it contains audio."""
        self._factory = factory
        self._output_converter = OutputConverter(asked.format)
        self._output: list[Entry] = []
        self._open: Entry | None = None
        """The item that is still growing."""
        self._read: TokenUsage = NO_TOKENS

    def save(self, blobs: Blobs, *, with_turn: bool) -> SavedResponse:
        """Return the state of an open response; `with_turn`: it still has to be sent to a worker."""
        asked = self.asked
        assert isinstance(asked.setup, ChatSetup)
        return SavedResponse(
            self.id,
            save_turn(self.turn, blobs) if with_turn else None,
            asked.setup,
            asked.modality,
            asked.format,
            asked.voice,
            asked.max_output_tokens,
            self.is_out_of_band,
            asked.metadata,
            self.has_spoken,
            self._output_converter.save(),
            tuple(entry.save(blobs) for entry in self._output),
            self._output.index(self._open) if self._open is not None else None,
            self._read,
        )

    @classmethod
    def restored(
        cls, saved: SavedResponse, blobs: Saved, conversation: Conversation, factory: EventFactory
    ) -> "Response":
        """Return a response from a saved state. Raises `ValueError`, `KeyError` or `IndexError`."""
        turn = turn_of(saved.turn, blobs) if saved.turn is not None else Turn(())
        asked = ResponseSettings(
            turn,
            saved.setup,
            saved.modality,
            saved.format,
            saved.voice,
            saved.max_output_tokens,
            None if saved.is_beside else conversation,
            saved.metadata,
        )
        made = cls(asked, factory)
        made.id, made.has_spoken, made._read = saved.id, saved.has_spoken, saved.tokens
        made._output_converter.restore(saved.mouth)
        for entry in saved.output:
            own = Entry.restored(entry, blobs)
            made._output.append(conversation.get(own.item.id) or own)
        made._open = made._output[saved.open] if saved.open is not None else None
        return made

    @property
    def has_output(self) -> bool:
        """Whether any output was sent."""
        return bool(self._output)

    @property
    def is_out_of_band(self) -> bool:
        """Whether it is outside the conversation."""
        return self.asked.conversation is None

    def shorten(self) -> bool:
        """Retry the turn with less of the conversation; return False if that is impossible."""
        turn = None if self._output else self.asked.shorter()
        self.turn = turn or self.turn
        return turn is not None

    def created(self) -> list[Action]:
        """Return the first event of the response."""
        return [self._factory.event(events.ResponseCreated, response=self._resource("in_progress"))]

    def prefilled(self, signal: Prefilled) -> None:
        """Note the tokens that the model has read."""
        self._read = signal.tokens

    def counted(self, tokens: TokenUsage) -> None:
        """Note the tokens used up to now."""
        self._read = tokens

    def said(self, piece: Piece) -> list[Action]:
        """Return the events for a piece of the answer."""
        if self.is_over:
            return []
        told: list[Action] = []
        if piece.text or piece.audio:
            entry = self._open
            if entry is None or isinstance(entry.item, CallItem):
                told += [*self._end_open("completed"), *self._begin_message()]
            entry = self._output[-1]
            if text := piece.text if self._has_words(entry) else piece.text.lstrip():
                told.append(self._write(entry, text))
            if piece.audio and self.asked.modality == "audio":
                told += self._speak(entry, self._output_converter.say(piece.audio, ends_turn=False))
        if piece.call is not None:
            told += self._call(piece.call)
        return told

    def done(self, signal: UnitDone) -> list[Action]:
        """Complete the response."""
        if signal.finish is Finish.LENGTH or signal.end is UnitEnd.CONTEXT_FULL:
            self.counted(signal.tokens)
            return self.cut()
        return self.end("completed", None, signal.tokens)

    def cut(self) -> list[Action]:
        """End the response at its token limit."""
        return self.end("incomplete", StatusDetails("incomplete", "max_output_tokens"), self._read)

    def cancelled(self, reason: Literal["turn_detected", "client_cancelled"]) -> list[Action]:
        """End the response as cancelled."""
        return self.end("cancelled", StatusDetails("cancelled", reason), self._read)

    def failed(self, error: ResponseError) -> list[Action]:
        """End the response as failed."""
        return self.end("failed", StatusDetails("failed", error=error), self._read)

    def end(
        self,
        status: Literal["completed", "cancelled", "incomplete", "failed"],
        details: StatusDetails | None,
        tokens: TokenUsage,
    ) -> list[Action]:
        """Close the open parts, from the inside out, and end the response."""
        if self.is_over:
            return []
        told = self._end_open("completed" if status == "completed" else "incomplete")
        self.is_over = True
        response = self._resource(status, details, _usage(tokens))
        return [*told, self._factory.event(events.ResponseDone, response=response)]

    # -------------------------------------------------------------------------------------- the items

    def _end_open(self, status: Status) -> list[Action]:
        entry, self._open = self._open, None
        if entry is None:
            return []
        return (
            self._end_message(entry, status)
            if isinstance(entry.item, MessageItem)
            else self._end_item(entry, "incomplete")
        )

    def _call(self, delta: CallDelta) -> list[Action]:
        told: list[Action] = []
        if delta.id or self._open is None or not isinstance(self._open.item, CallItem):
            item = CallItem(
                id=self._factory.new_id("item"),
                status="in_progress",
                name=delta.name,
                call_id=delta.id,
                arguments="",
            )
            told += [*self._end_open("completed"), *self._begin(Entry(item))]
        entry = self._output[-1]
        assert isinstance(entry.item, CallItem)
        if delta.arguments:
            entry.item.arguments += delta.arguments
            told.append(self._of_call(events.ArgumentsDelta, entry, entry.item, delta=delta.arguments))
        if delta.complete:
            arguments, name = entry.item.arguments, entry.item.name
            told.append(
                self._of_call(events.ArgumentsDone, entry, entry.item, arguments=arguments, name=name)
            )
            self._open = None
            told += self._end_item(entry, "completed")
        return told

    def _begin_message(self) -> list[Action]:
        item = MessageItem(
            id=self._factory.new_id("item"), status="in_progress", role="assistant", content=[]
        )
        is_spoken = self.asked.modality == "audio"
        entry = Entry(item, transcript=Transcript(self.asked.format.bytes_per_s) if is_spoken else None)
        told = self._begin(entry)
        content = events.AudioContent("") if is_spoken else events.TextContent("")
        told.append(self._of_part(events.ContentPartAdded, entry, part=content))
        item.content = [Spoken(transcript="") if is_spoken else Written(text="")]
        return told

    def _begin(self, entry: Entry) -> list[Action]:
        self._output.append(entry)
        self._open = entry
        actions: list[Action] = [self._of_item(events.OutputItemAdded, entry)]
        if (conversation := self.asked.conversation) is not None:
            if conversation.ratio is not None:
                conversation.make_room()
            before = conversation.last_id
            conversation.add(entry)
            item = copied(entry.item)
            actions.append(self._factory.event(events.ItemAdded, previous_item_id=before, item=item))
        return actions

    def _write(self, entry: Entry, text: str) -> Send:
        assert isinstance(entry.item, MessageItem)
        if entry.transcript is None:
            (part,) = entry.item.content
            assert isinstance(part, Written)
            entry.item.content = [Written(text=part.text + text)]
            return self._of_part(events.TextDelta, entry, delta=text)
        entry.transcript.write(text)
        return self._of_part(events.TranscriptDelta, entry, delta=text)

    @staticmethod
    def _has_words(entry: Entry) -> bool:
        """Return whether an item has any words: the first ones of a model begin with a space to drop."""
        if entry.transcript is not None:
            return bool(entry.transcript.all)
        return isinstance(entry.item, MessageItem) and entry.item.content != [Written(text="")]

    def _speak(self, entry: Entry, data: bytes) -> list[Action]:
        if not data or entry.transcript is None:
            return []
        self.has_spoken = True
        room = entry.transcript.sound(len(data))
        entry.sound += data[:room]
        seconds = len(data) / self.asked.format.bytes_per_s
        return [self._of_part(events.AudioDelta, entry, seconds, delta=data)]

    def _end_message(self, entry: Entry, status: Status) -> list[Action]:
        assert isinstance(entry.item, MessageItem)
        told: list[Action] = []
        if entry.transcript is not None:
            if status == "completed":
                told += self._speak(entry, self._output_converter.say(b"", ends_turn=True))
            words = entry.transcript.all
            told.append(self._of_part(events.AudioDone, entry))
            told.append(self._of_part(events.TranscriptDone, entry, transcript=words))
            told.append(self._of_part(events.ContentPartDone, entry, part=events.AudioContent(words)))
            entry.write()
        else:
            (part,) = entry.item.content
            assert isinstance(part, Written)
            told.append(self._of_part(events.TextDone, entry, text=part.text))
            told.append(self._of_part(events.ContentPartDone, entry, part=events.TextContent(part.text)))
        return [*told, *self._end_item(entry, status)]

    def _end_item(self, entry: Entry, status: Status) -> list[Action]:
        entry.item.status = status
        actions: list[Action] = []
        conversation = self.asked.conversation
        if conversation is not None and entry.item.id in conversation:
            conversation.drop_old_sound()
            before = conversation.before(entry.item.id)
            item = copied(entry.item)
            actions.append(self._factory.event(events.ItemDone, previous_item_id=before, item=item))
        return [*actions, self._of_item(events.OutputItemDone, entry)]

    # ----------------------------------------------------------------------------------- the events

    def _of_item(
        self, shape: type[events.OutputItemAdded] | type[events.OutputItemDone], entry: Entry
    ) -> Send:
        index = self._output.index(entry)
        return self._factory.event(shape, response_id=self.id, output_index=index, item=copied(entry.item))

    def _of_part(
        self,
        shape: type[events.RealtimeEvent],
        entry: Entry,
        audio_s: float | None = None,
        **fields: object,
    ) -> Send:
        return self._factory.sound(
            shape,
            audio_s,
            response_id=self.id,
            item_id=entry.item.id,
            output_index=self._output.index(entry),
            content_index=0,
            **fields,
        )

    def _of_call(
        self, shape: type[events.RealtimeEvent], entry: Entry, item: CallItem, **fields: str
    ) -> Send:
        index = self._output.index(entry)
        return self._factory.event(
            shape, response_id=self.id, item_id=item.id, output_index=index, call_id=item.call_id, **fields
        )

    def _resource(
        self,
        status: Literal["in_progress", "completed", "cancelled", "incomplete", "failed"],
        details: StatusDetails | None = None,
        usage: Usage | None = None,
    ) -> ResponseResource:
        asked = self.asked
        output: list[Item] = [copied(entry.item) for entry in self._output]
        return ResponseResource(
            id=self.id,
            status=status,
            status_details=details,
            output=output,
            conversation_id=asked.conversation.id if asked.conversation is not None else None,
            output_modalities=[asked.modality],
            max_output_tokens=asked.max_output_tokens,  # type: ignore[arg-type]
            audio=ResponseAudio(output=ResponseOutput(format=told_format(asked.format), voice=asked.voice)),
            usage=usage,
            metadata=asked.metadata,
        )


def _cached(given: InputTokenDetails) -> CachedTokens | UnsetType:
    kinds = (given.text_tokens, given.audio_tokens, given.vision_tokens)
    if given.cached_tokens in (0, sum(kinds)) or sum(kind > 0 for kind in kinds) == 1:
        return CachedTokens(*(min(kind, given.cached_tokens) for kind in kinds))
    return UNSET


def _usage(tokens: TokenUsage) -> Usage:
    given, made = tokens.input_token_details, tokens.output_token_details
    return Usage(
        tokens.total_tokens,
        tokens.input_tokens,
        tokens.output_tokens,
        InputTokens(
            given.text_tokens, given.audio_tokens, given.vision_tokens, given.cached_tokens, _cached(given)
        ),
        OutputTokens(made.text_tokens, made.audio_tokens),
    )
