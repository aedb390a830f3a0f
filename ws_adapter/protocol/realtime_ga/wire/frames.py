"""Frames of a Realtime client: read, or what is wrong with them. Nothing here touches a session."""

from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from ws_adapter.protocol.realtime_ga.wire.client_events import MAX_EVENT_ID_CHARACTERS, ClientEvent
from ws_adapter.protocol.realtime_ga.wire.events import Code
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied
from ws_adapter.protocol.wire.codec import EventDecoder
from ws_adapter.protocol.wire.errors import ErrorCode, InvalidUtf8, Refusal, missing

_decoder: Final[EventDecoder[ClientEvent]] = EventDecoder(ClientEvent)
_NAMES: Final = ", ".join(str(shape.__struct_config__.tag) for shape in get_args(ClientEvent))


class Fault:
    """A frame that holds no event; without a `refusal` it is not UTF-8."""

    def __init__(self, refusal: Refusal | None, event_id: str | None = None) -> None:
        self.refusal, self.event_id = refusal, event_id


def decode(frame: bytes, drops_input: bool) -> ClientEvent | Fault:
    """Touches nothing of the session."""
    try:
        event = _decoder.decode(frame, sized_only=drops_input)
        demand(event, "")
        return event
    except InvalidUtf8:
        return Fault(None)
    except Refusal as refusal:
        return Fault(_named(refusal), event_id_of(frame))


def demand(value: Any, path: str) -> None:
    """Raises `Refusal` for the first field of a client's struct, or of one in it, that misses."""
    if isinstance(value, list):
        for i, entry in enumerate(value):
            demand(entry, f"{path}[{i}]")
    if not isinstance(value, Struct):
        return
    may_be_empty = getattr(value, "MAY_BE_EMPTY", ())
    for name in getattr(value, "REQUIRED", ()):
        given = getattr(value, name)
        if given is None or (given == "" and name not in may_be_empty):
            raise missing(_join(path, name), "a value")
    for name in value.__struct_fields__:
        given = getattr(value, name)
        if isinstance(given, Struct | list):
            demand(given, _join(path, name))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _named(refusal: Refusal) -> Refusal:
    """What is no event by its form, or none of the protocol, in the protocol's words."""
    if refusal.code is ErrorCode.UNKNOWN_EVENT:
        text = f"{refusal.message}; supported are {_NAMES}"
        return Refusal(ErrorCode.UNKNOWN_EVENT, text, refusal.param, refusal.unknown_event)
    if refusal.code is ErrorCode.INVALID_PAYLOAD and refusal.param is None:
        return Denied(Code.INVALID_EVENT, refusal.message)
    return refusal


class _Called(msgspec.Struct):
    event_id: Any = None


_called: Final = msgspec.json.Decoder(_Called)


def event_id_of(frame: bytes) -> str | None:
    """What its client calls an event that could not be read; None if that cannot be read either."""
    try:
        event_id = _called.decode(frame).event_id
    except (msgspec.DecodeError, RecursionError):
        return None
    return event_id if isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID_CHARACTERS else None
