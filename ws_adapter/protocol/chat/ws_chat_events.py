"""Events of `/ws/chat`: the request of the client, and the events of the server."""

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
    """The only event of the client, which it sends as soon as it is connected. A field `type` is ignored."""


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
    """Null without audio, else base64 of raw little-endian float32, mono, 24 kHz."""
    thinking_delta: str = ""
    """The next piece of the model's thinking before it answers; absent without one."""
    tool_call: CallPiece | None = None
    """The next piece of a call to one of the `tools`; absent without one."""


class Done(ServerEvent, kw_only=True, tag="done"):
    """The whole answer. Then the connection closes."""

    text: str
    generated_tokens: Count
    """Tokens of the text, including the token that ends it."""
    input_tokens: Count
    audio_data: OutputAudio | None
    """The whole audio of an answer that is not streamed, else null: the chunks had the audio."""
    recording_session_id: str | None
    """The name of the recording of this session."""
    unsupported_fields: list[str] = field(default_factory=list)
    """Paths in the request of fields that were accepted but have no effect."""
    thinking: str = ""
    """The whole thinking of the model; absent if there is none."""
    tool_calls: list[DoneCall] = field(default_factory=list)
    """The complete calls; absent if there are none."""


class Error(ServerEvent, kw_only=True, tag="error"):
    """The request was refused, or failed. Then the connection closes."""

    error: str
    """For people: names the field, the expected and the actual value."""
    code: ErrorCode
    trace_id: str | None = None
    """The id by which the operator of the server finds the session."""

    tells_trouble: ClassVar = True

    @property
    def fault(self) -> Fault:
        return Fault(self.code, self.code.is_servers)

    def identify(self, trace_id: str) -> None:
        self.trace_id = trace_id


SERVER_EVENTS = (Queued, QueueUpdate, QueueDone, PrefillDone, SessionResumed, Chunk, Done, Error)
"""Everything that the server may send in this dialect."""
