"""The items of a session, in their order, within bounds."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import structs

from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.saved_turn import parts_of, save_parts
from ws_adapter.protocol.core.turn import Call, Message, Part
from ws_adapter.protocol.realtime_ga.saved.items import SavedConversation, SavedEntry, SavedItem
from ws_adapter.protocol.realtime_ga.transcript import Transcript
from ws_adapter.protocol.realtime_ga.wire.events import Code
from ws_adapter.protocol.realtime_ga.wire.items import (
    CallItem,
    CallOutputItem,
    InputAudioContent,
    Item,
    MessageItem,
    Spoken,
    Text,
    Written,
)
from ws_adapter.protocol.realtime_ga.wire.items import Part as ToldPart
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied
from ws_adapter.protocol.wire.errors import invalid
from ws_adapter.protocol.wire.events import MAX_PROMPT_CHARACTERS
from ws_adapter.protocol.wire.faults import shown

_ENCODER: Final = msgspec.msgpack.Encoder()
_ITEMS: Final = msgspec.msgpack.Decoder(SavedItem)

MOST_ITEMS: Final = 256
MOST_BYTES: Final = 24 * 2**20
"""The most bytes of clips, as float32 at 16 kHz, pictures and text: together six minutes of speech."""

MOST_DROPPED: Final = 1024
"""The most ids of dropped items and calls that are kept: clients may still name them."""

MOST_KEPT_BYTES: Final = 2**22
"""The most bytes of answer audio, which is kept only for retrieval: the oldest is dropped."""

MOST_HISTORY: Final = 8_000
"""The most characters of the history for a model that gets it only as text: the latest."""

FRONT: Final = "root"

_HEAD: Final = "The conversation so far:\n"


class Entry:
    """An item, with its form for the model and its form for a client that retrieves it."""

    def __init__(
        self, item: Item, parts: tuple[Part, ...] = (), transcript: Transcript | None = None
    ) -> None:
        self.item = item
        self.parts = parts
        """Parts of the user and of the system; the model's output is in the item."""
        self.transcript = transcript
        """The transcript of speech."""
        self.is_told = True
        """Whether the model gets the item: the oldest ones are left out if the context is too long."""
        self.sound = bytearray()
        """The audio of the item, in the output format."""
        self._saved = b""
        """The serialised `SavedItem`."""
        self._saved_from: tuple[Any, ...] = ()
        """Fields of the item from which `_saved` was made."""

    def save(self, blobs: Blobs) -> SavedEntry:
        """Return the state, without the sound of an answer."""
        item, parts, transcript = self.item, save_parts(self.parts, blobs), self.transcript
        content = tuple(item.content) if isinstance(item, MessageItem) else ()
        heard = transcript.ms if transcript is not None else 0
        saved_from = (item.status, content, parts, self.is_told, heard)
        if item.status == "in_progress" or saved_from != self._saved_from:
            told = transcript.save() if transcript is not None else None
            self._saved = _ENCODER.encode(SavedItem(item, parts, told, self.is_told))
            self._saved_from = saved_from
        return SavedEntry(blobs.keep(self._saved))

    @classmethod
    def restored(cls, saved: SavedEntry, blobs: Saved) -> "Entry":
        """Return an entry from a saved state. Raises `ValueError` or `KeyError`."""
        found = _ITEMS.decode(blobs[saved.item])
        transcript = Transcript.restored(found.transcript) if found.transcript is not None else None
        entry = cls(found.item, parts_of(found.parts, blobs), transcript)
        entry.is_told = found.is_told
        return entry

    @property
    def size(self) -> int:
        """The approximate size in bytes of its form for the model."""
        match self.item:
            case MessageItem(role="assistant", content=content):
                return sum(map(_length, content))
            case MessageItem():
                return sum(len(part if isinstance(part, str) else part.data) for part in self.parts)
            case CallOutputItem(output=output):
                return len(output)
            case CallItem(name=name, arguments=arguments):
                return len(name) + len(arguments)

    @property
    def is_system(self) -> bool:
        """Whether the item is a system message; system messages are dropped last."""
        return isinstance(self.item, MessageItem) and self.item.role == "system"

    @property
    def message(self) -> Message:
        """The message for the model: empty if there are neither parts nor calls."""
        match self.item:
            case MessageItem(role="assistant", content=content):
                said = (
                    part.transcript if isinstance(part, Spoken) else part.text
                    for part in content
                    if isinstance(part, Spoken | Written | Text)
                )
                return Message("assistant", tuple(filter(None, said)))
            case MessageItem(role=role):
                return Message(role, tuple(part for part in self.parts if part != ""))
            case CallOutputItem(call_id=call_id, output=output):
                return Message("tool", (output,), call_id=call_id)
            case CallItem(status="completed") as call:
                return Message("assistant", (), (Call(call.call_id, call.name, call.arguments or "{}"),))
        return Message("assistant", ())

    def drop_media(self) -> None:
        """Replace clips by their transcripts, and drop pictures."""
        content = self.item.content if isinstance(self.item, MessageItem) else []
        words = (part.transcript if isinstance(part, InputAudioContent) else "" for part in content)
        self.parts = tuple(
            part if isinstance(part, str) else said or ""
            for part, said in zip(self.parts, words, strict=False)
        )
        self.sound.clear()

    def transcribe(self, text: str) -> None:
        """Add the transcript of the user's speech."""
        if isinstance(self.item, MessageItem) and isinstance(self.item.content[0], InputAudioContent):
            self.item.content[0] = InputAudioContent(transcript=text)

    @property
    def written(self) -> Message:
        """The message with transcripts in place of clips, for a model that reads."""
        message = self.message
        if not isinstance(self.item, MessageItem) or self.item.role != "user":
            return message
        words = (
            part.transcript if isinstance(part, InputAudioContent) else None for part in self.item.content
        )
        parts = (said or part for part, said in zip(self.parts, words, strict=False))
        return structs.replace(message, parts=tuple(part for part in parts if part != ""))

    def truncate(self, ms: int) -> None:
        """Cut the entry at `ms`: the user heard nothing after it, and the model gets nothing after it."""
        assert self.transcript is not None
        del self.sound[self.transcript.cut(ms) :]
        self.write()

    def write(self) -> None:
        """Update the item with its transcript."""
        if self.transcript is not None and isinstance(self.item, MessageItem) and self.item.content:
            self.item.content[0] = Spoken(transcript=self.transcript.text)


def _length(part: ToldPart) -> int:
    match part:
        case Spoken(transcript=words) | Written(text=words) | Text(text=words):
            return len(words)
    return 0


class Conversation:
    """The items, bounded by `MOST_ITEMS` and `MOST_BYTES`: the oldest are dropped beyond that."""

    def __init__(self, id: str, ratio: float | None) -> None:
        self.id = id
        self.ratio = ratio
        """The share of a bound that remains when items are dropped; None: a client's item drops no others."""
        self._entries: dict[str, Entry] = {}
        self._dropped: deque[str] = deque(maxlen=MOST_DROPPED)

    def save(self, blobs: Blobs) -> SavedConversation:
        """Return the state."""
        entries = tuple(entry.save(blobs) for entry in self._entries.values())
        return SavedConversation(self.id, self.ratio, entries, tuple(self._dropped))

    @classmethod
    def restored(cls, saved: SavedConversation, blobs: Saved) -> "Conversation":
        """Return a conversation from a saved state. Raises `ValueError` or `KeyError`."""
        made = cls(saved.id, saved.ratio)
        for entry in saved.entries:
            made.add(Entry.restored(entry, blobs))
        made._dropped.extend(saved.dropped)
        return made

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._entries

    @property
    def size(self) -> int:
        """The bytes of all items in their form for the model."""
        return sum(entry.size for entry in self._entries.values())

    @property
    def has_unwritten_speech(self) -> bool:
        """Whether the user has spoken without a transcript."""
        entries = self._entries.values()
        return any(
            isinstance(part, InputAudioContent) and not part.transcript
            for entry in entries
            if isinstance(entry.item, MessageItem)
            for part in entry.item.content
        )

    @property
    def last_id(self) -> str | None:
        """The id of the last item."""
        return next(reversed(self._entries), None)

    def before(self, item_id: str) -> str | None:
        """Return the item before this one, if there is any."""
        ids = list(self._entries)
        at = ids.index(item_id)
        return ids[at - 1] if at else None

    def find(self, item_id: str, code: Code, param: str = "item_id") -> Entry:
        """Return an item. Raises `Refusal` of this code if there is none; `param` is the field that named
        it."""
        entry = self._entries.get(item_id)
        if entry is None:
            raise Denied(code, f"{param}: there is no item {shown(item_id)} in the conversation", param)
        return entry

    def get(self, item_id: str) -> Entry | None:
        """Return an item; None if there is none."""
        return self._entries.get(item_id)

    def has_dropped(self, item_id: str) -> bool:
        """Return whether this item, or call, was dropped for newer ones, without an event for the client."""
        return item_id not in self._entries and item_id in self._dropped

    def admit(self, size: int) -> None:
        """Make room for an item of `size` bytes. Without a `ratio`, raises `Refusal` if there is no room."""
        if self.ratio is not None:
            self.make_room(size)
            return
        if len(self._entries) >= MOST_ITEMS:
            message = f"the conversation has {MOST_ITEMS} items, the most it may have; delete some"
            raise Denied(Code.CONVERSATION_FULL, message)
        if self.size + size > MOST_BYTES:
            most = f"{MOST_BYTES // 2**20} MiB of text, pictures and clips as float32 at 16 kHz"
            message = f"the conversation would have more than {most}; delete some items"
            raise Denied(Code.CONVERSATION_FULL, message)

    def make_room(self, size: int = 0) -> None:
        """Drop the oldest clips and pictures, then items, if an item of `size` bytes has no room.

        At most the share `ratio` of a bound remains then. System items are dropped last.
        """
        ratio = 1.0 if self.ratio is None else self.ratio
        if (held := self.size) + size > MOST_BYTES:
            most = min(int(MOST_BYTES * ratio), MOST_BYTES - size)
            for entry in self._oldest():
                if held <= most:
                    break
                held -= entry.size
                entry.drop_media()
                held += entry.size
            for entry in self._oldest():
                if held <= most:
                    break
                held -= entry.size
                self._drop(entry)
        if len(self._entries) >= MOST_ITEMS:
            most = min(max(1, int(MOST_ITEMS * ratio)), MOST_ITEMS - 1)
            for entry in self._oldest()[: len(self._entries) - most]:
                self._drop(entry)

    def _oldest(self) -> list[Entry]:
        """Return the complete items, in the order in which they are dropped."""
        whole = [entry for entry in self._entries.values() if entry.item.status != "in_progress"]
        return sorted(whole, key=lambda entry: entry.is_system)

    def _drop(self, entry: Entry) -> None:
        del self._entries[entry.item.id]
        self._dropped.append(entry.item.id)
        if isinstance(entry.item, CallItem):
            self._dropped.append(entry.item.call_id)

    def add(self, entry: Entry, after: str | None = None) -> None:
        """Insert an item behind another one, at the front, or at the end. Raises `Refusal`."""
        if after is None:
            self._entries[entry.item.id] = entry
            return
        is_first = after == FRONT or self.has_dropped(after)
        if not is_first and after not in self._entries:
            raise invalid("previous_item_id", f"there is no item {shown(after)} in the conversation")
        ids = list(self._entries)
        at = 0 if is_first else ids.index(after) + 1
        entries = list(self._entries.items())
        self._entries = dict([*entries[:at], (entry.item.id, entry), *entries[at:]])

    def has_call(self, call_id: str) -> bool:
        """Return whether the model has made this call."""
        items = (entry.item for entry in self._entries.values())
        is_held = any(isinstance(item, CallItem) and item.call_id == call_id for item in items)
        return is_held or call_id in self._dropped

    def delete(self, item_id: str) -> None:
        """Delete an item, which may have been dropped. Raises `Refusal` if it never existed."""
        if not self.has_dropped(item_id):
            self.find(item_id, Code.DELETE_UNKNOWN)
            del self._entries[item_id]

    def drop_old_sound(self) -> None:
        """Drop the oldest answer audio beyond the bound."""
        kept = 0
        for entry in reversed(self._entries.values()):
            kept += len(entry.sound)
            if kept > MOST_KEPT_BYTES:
                kept -= len(entry.sound)
                entry.sound.clear()

    def messages(self) -> list[Message]:
        """Return the messages for the model."""
        return messages_of(entry for entry in self._entries.values() if entry.is_told)

    def written(self) -> list[Message]:
        """Return the messages with transcripts in place of clips, for a model that gets them as text.

        Clips after the model's last answer stay, since the model gets that audio again.
        """
        entries = [entry for entry in self._entries.values() if entry.is_told]
        answers = [at for at, entry in enumerate(entries) if entry.message.role == "assistant"]
        heard = answers[-1] if answers else 0
        return _joined(entry.written if at < heard else entry.message for at, entry in enumerate(entries))

    def shorten(self, ratio: float) -> bool:
        """Hide the oldest items from the model, except system items, so that the share `ratio` remains;
        return False if only the last is left."""
        told = [entry for entry in self._entries.values() if entry.is_told and not entry.is_system]
        if len(told) < 2:
            return False
        most = min(max(1, int(len(told) * ratio)), len(told) - 1)
        for entry in told[:-most]:
            entry.is_told = False
        return True


def messages_of(entries: Iterable[Entry]) -> list[Message]:
    """Return the messages of items for the model: calls go with the words before them, results only with
    their calls."""
    return _joined(entry.message for entry in entries)


def _joined(messages: Iterable[Message]) -> list[Message]:
    told: list[Message] = []
    called: set[str] = set()
    for message in messages:
        if message.role == "tool" and message.call_id not in called:
            continue
        called.update(call.id for call in message.calls)
        if message.calls and told and told[-1].role == "assistant":
            told[-1] = structs.replace(told[-1], calls=told[-1].calls + message.calls)
        elif message.parts or message.calls:
            told.append(message)
    return told


def prompt_of(instructions: str, messages: Iterable[Message], most: int = MOST_HISTORY) -> str:
    """Return the instructions and, behind them, the latest `most` characters of the conversation, in lines.

    Clips and pictures without words are left out.
    """
    before = f"{instructions}\n\n{_HEAD}" if instructions else _HEAD
    room = min(most, MAX_PROMPT_CHARACTERS - len(before))
    lines: list[str] = []
    for message in reversed(list(messages)):
        words = " ".join(part for part in message.parts if isinstance(part, str)).strip()
        if not words:
            continue
        line = f"{message.role}: {words}"
        room -= len(line) + 1
        if room < 0:
            break
        lines.append(line)
    return before + "\n".join(reversed(lines)) if lines else instructions


def without_calls(messages: Iterable[Message]) -> Iterator[Message]:
    """Return the text messages for a model without tools."""
    for message in messages:
        if message.role != "tool" and message.parts:
            yield structs.replace(message, calls=())


def copied(item: Item) -> Item:
    """Return a copy of an item, so that later changes do not alter what is sent."""
    if isinstance(item, MessageItem):
        return structs.replace(item, content=list(item.content))
    return structs.replace(item)
