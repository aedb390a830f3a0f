"""Frames of clients that may name their events: read, or what is wrong with them, for an error that names
the event too. Nothing here touches a session."""

from typing import Any, Final, Generic, TypeVar

import msgspec

from ws_adapter.protocol.wire.codec import EventDecoder
from ws_adapter.protocol.wire.errors import InvalidUtf8, Refusal
from ws_adapter.protocol.wire.events import MAX_EVENT_ID_CHARACTERS

E = TypeVar("E")


class Fault:
    """A frame that holds no event; without a `refusal` it is not UTF-8."""

    def __init__(self, refusal: Refusal | None, event_id: str | None = None) -> None:
        self.refusal, self.event_id = refusal, event_id


class FrameReader(Generic[E]):
    """Of one dialect; `union` is that of its events' tagged structs."""

    def __init__(self, union: Any) -> None:
        self._decoder: EventDecoder[E] = EventDecoder(union)

    def read(self, frame: bytes, drops_input: bool) -> E | Fault:
        """The event in a text frame; with `drops_input` the audio of an append is not looked at."""
        try:
            event = self._decoder.decode(frame, sized_only=drops_input)
            self.check(event)
        except InvalidUtf8:
            return Fault(None)
        except Refusal as refusal:
            return Fault(self.restate(refusal), _event_id(frame))
        return event

    def check(self, event: E) -> None:
        """Raises `Refusal` for an event whose form is right and which nobody could follow all the same."""

    def restate(self, refusal: Refusal) -> Refusal:
        """The refusal in the words of the protocol."""
        return refusal


class _Named(msgspec.Struct):
    event_id: Any = None


_named: Final = msgspec.json.Decoder(_Named)


def _event_id(frame: bytes) -> str | None:
    """What its client calls an event that could not be read; None if that cannot be read either."""
    try:
        event_id = _named.decode(frame).event_id
    except (msgspec.DecodeError, RecursionError):
        return None
    return event_id if isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID_CHARACTERS else None
