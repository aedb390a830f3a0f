"""Frames of clients of OpenAI's Realtime protocol, for all kinds of sessions."""

from typing import Any, Final, TypeVar, get_args

from msgspec import Struct

from ws_adapter.protocol.realtime_ga.wire.client_events import ClientEvent
from ws_adapter.protocol.realtime_ga.wire.events import Code
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied
from ws_adapter.protocol.wire.errors import ErrorCode, Refusal, missing
from ws_adapter.protocol.wire.frames import FrameReader

E = TypeVar("E")


class RealtimeReader(FrameReader[E]):
    """The reader of OpenAI's events: it also requires the protocol's mandatory fields, and names unknown
    ones."""

    def __init__(self, union: Any) -> None:
        super().__init__(union)
        self._names = ", ".join(str(shape.__struct_config__.tag) for shape in get_args(union))

    def check(self, event: E) -> None:
        demand(event, "")

    def restate(self, refusal: Refusal) -> Refusal:
        """Return a refusal of a malformed or unknown event in the words of the protocol."""
        if refusal.code is ErrorCode.UNKNOWN_EVENT:
            text = f"{refusal.message}; supported are {self._names}"
            return Refusal(ErrorCode.UNKNOWN_EVENT, text, refusal.param, refusal.unknown_event)
        if refusal.code is ErrorCode.INVALID_PAYLOAD and refusal.param is None:
            return Denied(Code.INVALID_EVENT, refusal.message)
        return refusal


FRAMES: Final[RealtimeReader[ClientEvent]] = RealtimeReader(ClientEvent)
"""The reader of events of a conversation session."""


def demand(value: Any, path: str) -> None:
    """Raise `Refusal` for the first missing field of a client's struct, or of a struct in it."""
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
