"""Frames of a client that requests transcription."""

from typing import Any, Final

import msgspec

from ws_adapter.protocol.realtime_ga.wire.frames import RealtimeReader
from ws_adapter.protocol.transcription_ga.events import ClientEvent

FRAMES: Final[RealtimeReader[ClientEvent]] = RealtimeReader(ClientEvent)


class _First(msgspec.Struct):
    session: Any = None
    model: Any = None


_first: Final = msgspec.json.Decoder(_First)


def speaks_ga(frame: bytes) -> bool:
    """Return whether a client's first frame is of OpenAI's protocol: it has a `session` object and no
    `model`."""
    try:
        first = _first.decode(frame)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return False
    return isinstance(first.session, dict) and first.model is None
