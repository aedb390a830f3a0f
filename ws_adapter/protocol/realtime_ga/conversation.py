"""The items of a session, in their order, within bounds."""

from collections.abc import Iterable, Iterator

from msgspec import structs

from ws_adapter.protocol.core.turn import Call, Message, Part
from ws_adapter.protocol.realtime_ga.transcript import Transcript
from ws_adapter.protocol.realtime_ga.wire.events import Code
from ws_adapter.protocol.realtime_ga.wire.items import (
    CallItem,
    CallOutputItem,
    Item,
    MessageItem,
    Spoken,
    Text,
    Written,
)
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied
from ws_adapter.protocol.wire.errors import invalid
from ws_adapter.protocol.wire.faults import shown

MOST_ITEMS = 256
MOST_BYTES = 24 * 2**20
"""Of clips, as float32 at 16 kHz, pictures and text: together six minutes of speech."""

MOST_KEPT_BYTES = 2**22
"""Of the sound of answers, which is kept only for those who ask for it: of the oldest it is forgotten."""

FRONT = "root"


class Entry:
    """An item, what the model is told of it, and what a client is told that asks for it."""

    def __init__(
        self, item: Item, parts: tuple[Part, ...] = (), transcript: Transcript | None = None
    ) -> None:
        self.item = item
        self.parts = parts
        """Of the user and of the system; what the model said is in the item."""
        self.transcript = transcript
        """Of what was spoken."""
        self.is_told = True
        """Whether the model is told of it: of what is too long for it, the oldest is left out."""
        self.sound = bytearray()
        """What was to be heard of it, in the output format."""

    @property
    def size(self) -> int:
        """Bytes of what the model is told of it, about."""
        return self.message.size

    @property
    def is_speech(self) -> bool:
        """Whether somebody said it: all but what the system says."""
        return not (isinstance(self.item, MessageItem) and self.item.role == "system")

    @property
    def message(self) -> Message:
        """What the model is told of it: nothing where there are neither parts nor calls."""
        match self.item:
            case MessageItem(role="assistant", content=content):
                said = (
                    part.transcript if isinstance(part, Spoken) else part.text
                    for part in content
                    if isinstance(part, Spoken | Written | Text)
                )
                return Message("assistant", tuple(filter(None, said)))
            case MessageItem(role=role):
                return Message(role, self.parts)
            case CallOutputItem(call_id=call_id, output=output):
                return Message("tool", (output,), call_id=call_id)
            case CallItem(status="completed") as call:
                return Message("assistant", (), (Call(call.call_id, call.name, call.arguments or "{}"),))
        return Message("assistant", ())

    def truncate(self, ms: int) -> None:
        """Nothing after that was heard, and the model is told of nothing after that."""
        assert self.transcript is not None
        del self.sound[self.transcript.cut(ms) :]
        self.write()

    def write(self) -> None:
        """Brings the item up to its transcript."""
        if self.transcript is not None and isinstance(self.item, MessageItem) and self.item.content:
            self.item.content[0] = Spoken(transcript=self.transcript.text)


class Conversation:
    """Bounded by `MOST_ITEMS` and `MOST_BYTES`."""

    def __init__(self, id: str) -> None:
        self.id = id
        self._entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._entries

    @property
    def last_id(self) -> str | None:
        """The item at the end."""
        return next(reversed(self._entries), None)

    def before(self, item_id: str) -> str | None:
        """The item before this one, if there is any."""
        ids = list(self._entries)
        at = ids.index(item_id)
        return ids[at - 1] if at else None

    def find(self, item_id: str, code: Code, param: str = "item_id") -> Entry:
        """Raises `Refusal` of this code if there is none; `param` says so."""
        entry = self._entries.get(item_id)
        if entry is None:
            raise Denied(code, f"{param}: there is no item {shown(item_id)} in the conversation", param)
        return entry

    def check_room(self, size: int) -> None:
        """Raises `Refusal` unless there is room for an item of so many bytes."""
        if len(self._entries) >= MOST_ITEMS:
            message = f"the conversation has {MOST_ITEMS} items, the most it may have; delete some"
            raise Denied(Code.CONVERSATION_FULL, message)
        held = sum(entry.size for entry in self._entries.values())
        if held + size > MOST_BYTES:
            most = f"{MOST_BYTES // 2**20} MiB of text, pictures and clips as float32 at 16 kHz"
            message = f"the conversation would have more than {most}; delete items of it"
            raise Denied(Code.CONVERSATION_FULL, message)

    def make_room(self, size: int = 0) -> None:
        """Forgets the oldest items until there is room for one of so many bytes."""
        while self._entries:
            try:
                self.check_room(size)
            except Denied:
                del self._entries[next(iter(self._entries))]
            else:
                return

    def add(self, entry: Entry, after: str | None = None) -> None:
        """Puts an item behind another one, at the front, or at the end. Raises `Refusal`."""
        if after is None:
            self._entries[entry.item.id] = entry
            return
        if after != FRONT and after not in self._entries:
            raise invalid("previous_item_id", f"there is no item {shown(after)} in the conversation")
        ids = list(self._entries)
        at = 0 if after == FRONT else ids.index(after) + 1
        entries = list(self._entries.items())
        self._entries = dict([*entries[:at], (entry.item.id, entry), *entries[at:]])

    def has_call(self, call_id: str) -> bool:
        """Whether the model has made this call."""
        items = (entry.item for entry in self._entries.values())
        return any(isinstance(item, CallItem) and item.call_id == call_id for item in items)

    def delete(self, item_id: str) -> None:
        """Forgets an item. Raises `Refusal` if there is none."""
        self.find(item_id, Code.DELETE_UNKNOWN)
        del self._entries[item_id]

    def keep_sound(self) -> None:
        """Forgets the oldest sound of answers where there is too much."""
        kept = 0
        for entry in reversed(self._entries.values()):
            kept += len(entry.sound)
            if kept > MOST_KEPT_BYTES:
                kept -= len(entry.sound)
                entry.sound.clear()

    def messages(self) -> list[Message]:
        """What the model is told of it."""
        return messages_of(entry for entry in self._entries.values() if entry.is_told)

    def shorten(self, ratio: float) -> bool:
        """Leaves out the oldest of what the model is told, but for what the system says, so that as many of
        the items remain; False if only the last is left."""
        told = [entry for entry in self._entries.values() if entry.is_told and entry.is_speech]
        if len(told) < 2:
            return False
        most = min(max(1, int(len(told) * ratio)), len(told) - 1)
        for entry in told[:-most]:
            entry.is_told = False
        return True


def messages_of(entries: Iterable[Entry]) -> list[Message]:
    """What the model is told of items: calls go with the words before them, results only with their calls."""
    told: list[Message] = []
    called: set[str] = set()
    for message in (entry.message for entry in entries):
        if message.role == "tool" and message.call_id not in called:
            continue
        called.update(call.id for call in message.calls)
        if message.calls and told and told[-1].role == "assistant":
            told[-1] = structs.replace(told[-1], calls=told[-1].calls + message.calls)
        elif message.parts or message.calls:
            told.append(message)
    return told


def without_calls(messages: Iterable[Message]) -> Iterator[Message]:
    """Return what a model is told that knows no tools: the words alone."""
    for message in messages:
        if message.role != "tool" and message.parts:
            yield structs.replace(message, calls=())


def told(item: Item) -> Item:
    """An item as it is now: what is sent later says what was the case."""
    if isinstance(item, MessageItem):
        return structs.replace(item, content=list(item.content))
    return structs.replace(item)
