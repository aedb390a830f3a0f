"""Events of `/ws/chat`, dialect C: one request, and what the server answers."""

from typing import ClassVar, TypeAlias

from msgspec import field

from ws_adapter.protocol.chat.fields import ChatFields
from ws_adapter.protocol.chat.tools import CallPiece, DoneCall
from ws_adapter.protocol.duplex.ws_duplex_events import Queued, QueueUpdate
from ws_adapter.protocol.wire.errors import ErrorCode
from ws_adapter.protocol.wire.events import (
    Count,
    Fault,
    OutputAudio,
    ResumeField,
    ServerEvent,
    SessionResumed,
)

# ----------------------------------------------------------------------------------------------- client


class ChatRequest(ChatFields, frozen=True):
    """The one thing that a client sends, as soon as it is connected. A `type` is not looked at."""


ClientEvent: TypeAlias = ChatRequest

# ----------------------------------------------------------------------------------------------- server


class QueueDone(ServerEvent, kw_only=True, tag="queue_done"):
    """A slot is assigned, after a wait."""


class PrefillDone(ServerEvent, kw_only=True, tag="prefill_done"):
    """The model has read all messages."""

    input_tokens: Count
    resume: ResumeField = None

    offers_resume: ClassVar = True


class Chunk(ServerEvent, kw_only=True, tag="chunk"):
    """A piece of a streamed answer."""

    text_delta: str
    audio_data: OutputAudio | None
    """Null where there is nothing to hear, else base64 of raw little-endian float32, mono, 24 kHz."""
    thinking_delta: str = ""
    """More of what the model thinks before it answers; absent where it does not."""
    tool_call: CallPiece | None = None
    """More of a call to one of the `tools`; absent where there is none."""


class Done(ServerEvent, kw_only=True, tag="done"):
    """The whole answer; the connection closes."""

    text: str
    generated_tokens: Count
    """Of the text, the one that ends it included."""
    input_tokens: Count
    audio_data: OutputAudio | None
    """The whole audio of an answer that is not streamed, else null: then it was in the chunks."""
    recording_session_id: str | None
    """Name of the recording that was made."""
    unsupported_fields: list[str] = field(default_factory=list)
    """Paths in the request of what was accepted but is not honoured."""
    thinking: str = ""
    """All that the model thought; absent if nothing."""
    tool_calls: list[DoneCall] = field(default_factory=list)
    """The calls that are complete; absent if there are none."""


class Error(ServerEvent, kw_only=True, tag="error"):
    """The request was refused, or failed; the connection closes."""

    error: str
    """For people: names the field, what was expected and what came."""
    code: ErrorCode
    trace_id: str | None = None
    """By which the operator of the server finds the session."""

    tells_trouble: ClassVar = True

    @property
    def fault(self) -> Fault:
        return Fault(self.code, self.code.is_servers)

    def identify(self, trace_id: str) -> None:
        self.trace_id = trace_id


SERVER_EVENTS = (Queued, QueueUpdate, QueueDone, PrefillDone, SessionResumed, Chunk, Done, Error)
"""Everything that the server may send in this dialect."""
