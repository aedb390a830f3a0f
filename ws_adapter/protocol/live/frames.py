"""Frames of a Live client: read, or what is wrong with them. Nothing here touches a session."""

from typing import Any, Final

import msgspec

from ws_adapter.protocol.live.events import MAX_EVENT_ID_CHARACTERS, ClientEvent
from ws_adapter.protocol.wire.codec import EventDecoder
from ws_adapter.protocol.wire.errors import InvalidUtf8, Refusal

_decoder: Final[EventDecoder[ClientEvent]] = EventDecoder(ClientEvent)


class Fault:
    """A frame that holds no event; without a `refusal` it is not UTF-8."""

    def __init__(self, refusal: Refusal | None, event_id: str | None = None) -> None:
        self.refusal, self.event_id = refusal, event_id


def decode(frame: bytes, drops_input: bool) -> ClientEvent | Fault:
    """Touches nothing of the session."""
    try:
        return _decoder.decode(frame, sized_only=drops_input)
    except InvalidUtf8:
        return Fault(None)
    except Refusal as refusal:
        return Fault(refusal, _event_id(frame))


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
