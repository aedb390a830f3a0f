"""Frames of a client that has what is said written down. Nothing here touches a session."""

from typing import Any, Final, get_args

import msgspec

from ws_adapter.protocol.realtime_ga.wire.events import Code
from ws_adapter.protocol.realtime_ga.wire.frames import Fault, demand, event_id_of
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied
from ws_adapter.protocol.transcription_ga.events import ClientEvent
from ws_adapter.protocol.wire.codec import EventDecoder
from ws_adapter.protocol.wire.errors import ErrorCode, InvalidUtf8, Refusal

_decoder: Final[EventDecoder[ClientEvent]] = EventDecoder(ClientEvent)
_NAMES: Final = ", ".join(str(shape.__struct_config__.tag) for shape in get_args(ClientEvent))


def decode(frame: bytes, drops_input: bool) -> ClientEvent | Fault:
    """An event, or what is wrong with it."""
    try:
        event = _decoder.decode(frame, sized_only=drops_input)
        demand(event, "")
        return event
    except InvalidUtf8:
        return Fault(None)
    except Refusal as refusal:
        return Fault(_named(refusal), event_id_of(frame))


def _named(refusal: Refusal) -> Refusal:
    if refusal.code is ErrorCode.UNKNOWN_EVENT:
        text = f"{refusal.message}; supported are {_NAMES}"
        return Refusal(ErrorCode.UNKNOWN_EVENT, text, refusal.param, refusal.unknown_event)
    if refusal.code is ErrorCode.INVALID_PAYLOAD and refusal.param is None:
        return Denied(Code.INVALID_EVENT, refusal.message)
    return refusal


class _First(msgspec.Struct):
    session: Any = None
    model: Any = None


_first: Final = msgspec.json.Decoder(_First)


def speaks_ga(frame: bytes) -> bool:
    """Whether a client's first frame is of OpenAI's protocol: it has a `session` object and no `model`."""
    try:
        first = _first.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return isinstance(first.session, dict) and first.model is None
