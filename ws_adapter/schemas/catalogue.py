"""The published dialects and their events."""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias, get_args

from msgspec import Struct

from ws_adapter.protocol.chat import realtime_chat_events, ws_chat_events
from ws_adapter.protocol.duplex import earlier_events, realtime_events, ws_duplex_events
from ws_adapter.protocol.live import events as live_events
from ws_adapter.protocol.realtime_ga.wire import client_events
from ws_adapter.protocol.realtime_ga.wire import events as ga_events
from ws_adapter.protocol.transcription import events
from ws_adapter.protocol.transcription_ga import events as transcription_ga_events

Json: TypeAlias = dict[str, Any]
"""A JSON object for output."""


@dataclass(frozen=True)
class Dialect:
    """One public protocol and the structs of its events. `channels` are keys of `asyncapi.CHANNELS`.

    `opener` is the event with which a session begins. It is None if a client sends one unnamed request, and
    empty if the server sends the first event.
    """

    name: str
    title: str
    opener: str | None
    channels: tuple[str, ...]
    client_events: tuple[type[Struct], ...]
    server_events: tuple[type[Struct], ...]

    @property
    def opening(self) -> str:
        """The opening of a session, as a sentence."""
        if self.opener is None:
            return "A client sends one request."
        return f"The opening event is `{self.opener}`." if self.opener else "The server opens the session."

    @property
    def file(self) -> str:
        """Name of its JSON Schema."""
        return f"{self.name}.schema.json"


DIALECTS: Final = (
    Dialect(
        "realtime",
        "The current dialect of /v1/realtime",
        "session.init",
        ("realtime",),
        get_args(realtime_events.ClientEvent),
        realtime_events.SERVER_EVENTS,
    ),
    Dialect(
        "realtime_chat",
        "The current dialect of /v1/realtime in mode=chat",
        "session.init",
        ("realtime",),
        get_args(realtime_chat_events.ClientEvent),
        realtime_chat_events.SERVER_EVENTS,
    ),
    Dialect(
        "earlier",
        "The earlier dialect of /v1/realtime",
        "session.update",
        ("realtime",),
        get_args(earlier_events.ClientEvent),
        earlier_events.SERVER_EVENTS,
    ),
    Dialect(
        "duplex",
        "The dialect of /ws/duplex",
        "prepare",
        ("duplex", "unnamedDuplex"),
        get_args(ws_duplex_events.ClientEvent),
        ws_duplex_events.SERVER_EVENTS,
    ),
    Dialect(
        "chat",
        "The dialect of /ws/chat",
        None,
        ("chat",),
        (ws_chat_events.ChatRequest,),
        ws_chat_events.SERVER_EVENTS,
    ),
    Dialect(
        "transcription",
        "The dialect of /v1/transcription",
        "session.update",
        ("transcription", "realtime"),
        get_args(events.ClientEvent),
        events.SERVER_EVENTS,
    ),
    Dialect(
        "live",
        "The dialect of /v1/live/sessions",
        "session.start",
        ("live",),
        get_args(live_events.ClientEvent),
        live_events.SERVER_EVENTS,
    ),
    Dialect(
        "realtime_ga",
        "The dialect of /v1/realtime?model=",
        "",
        ("realtimeGa",),
        get_args(client_events.ClientEvent),
        ga_events.SERVER_EVENTS,
    ),
    Dialect(
        "transcription_ga",
        "OpenAI's dialect of /v1/realtime?intent=transcription",
        "",
        ("realtimeGaTranscription",),
        get_args(transcription_ga_events.ClientEvent),
        transcription_ga_events.SERVER_EVENTS,
    ),
)
