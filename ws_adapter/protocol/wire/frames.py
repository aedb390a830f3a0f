"""The reader of frames whose events may have ids, so that an error can name the event. It touches no
session."""

from typing import Any, Final, Generic, TypeVar

import msgspec

from ws_adapter.protocol.wire.codec import EventDecoder
from ws_adapter.protocol.wire.errors import InvalidUtf8, Refusal
from ws_adapter.protocol.wire.events import MAX_EVENT_ID_CHARACTERS

E = TypeVar("E")


class Fault:
    """A frame that is no valid event; `refusal` is None if the frame is not UTF-8.

    `event_id` and `event_type` are those in the frame, None if they cannot be read.
    """

    def __init__(
        self, refusal: Refusal | None, event_id: str | None = None, event_type: str | None = None
    ) -> None:
        self.refusal, self.event_id, self.event_type = refusal, event_id, event_type


class FrameReader(Generic[E]):
    """The frame reader of one dialect; `union` is the union of the tagged structs of its events."""

    def __init__(self, union: Any) -> None:
        self._decoder: EventDecoder[E] = EventDecoder(union)

    def read(self, frame: bytes, drops_input: bool) -> E | Fault:
        """Return the event in a text frame; with `drops_input` the audio of an append is not decoded."""
        try:
            event = self._decoder.decode(frame, sized_only=drops_input)
            self.check(event)
        except InvalidUtf8:
            return Fault(None)
        except Refusal as refusal:
            return Fault(self.restate(refusal), *_names(frame))
        return event

    def check(self, event: E) -> None:
        """Raise `Refusal` for a well-formed event that cannot be carried out."""

    def restate(self, refusal: Refusal) -> Refusal:
        """Return the refusal in the words of the protocol."""
        return refusal


class _Named(msgspec.Struct):
    event_id: Any = None
    type: Any = None


_named: Final = msgspec.json.Decoder(_Named)


def _names(frame: bytes) -> tuple[str | None, str | None]:
    """Return id and type of an invalid event, each None if it cannot be read either."""
    try:
        named = _named.decode(frame)
    except (msgspec.DecodeError, RecursionError):
        return None, None
    return _name(named.event_id), _name(named.type)


def _name(given: Any) -> str | None:
    return given if isinstance(given, str) and len(given) <= MAX_EVENT_ID_CHARACTERS else None
