"""Events of `/v1/realtime` in mode chat, where they differ from those of full duplex."""

from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct, field

from ws_adapter.protocol.chat.fields import ChatFields
from ws_adapter.protocol.chat.reply import DoneReason
from ws_adapter.protocol.chat.tools import CallPiece, DoneCall
from ws_adapter.protocol.duplex.realtime_events import SessionClose, SessionClosed, SessionInit, TimedEvent
from ws_adapter.protocol.wire.events import (
    ErrorEvent,
    InputId,
    OutputAudio,
    ResumeField,
    SessionQueued,
    SessionQueueDone,
    SessionQueueUpdate,
    SessionResumed,
    TokenUsage,
    TraceContext,
)

# ----------------------------------------------------------------------------------------------- client


class TurnFields(ChatFields, frozen=True):
    """A turn with its whole conversation: the server keeps nothing of earlier turns. The answer is spoken
    only with `tts.enabled` or `use_tts_template`."""

    input_id: InputId | None = None


class TurnAppend(Struct, frozen=True, tag_field="type", tag="input.append"):
    """Requests an answer. Four further turns may wait while one is answered."""

    input: TurnFields | None = None
    trace_context: TraceContext = None

    REQUIRED: ClassVar = ("input",)


ClientEvent: TypeAlias = SessionInit | TurnAppend | SessionClose

# ----------------------------------------------------------------------------------------------- server


class ChatCreated(TimedEvent, kw_only=True, tag="session.created"):
    """The session takes turns."""

    session_id: str
    mode: Literal["turn_based"]
    usage: TokenUsage
    """Tokens of the settings: system prompt and voice."""
    unsupported_fields: list[str] = field(default_factory=list)
    """Paths in `payload` of fields that were accepted but have no effect."""
    recording_session_id: str | None = None
    """The name of the recording of this session."""
    resume: ResumeField = None

    offers_resume: ClassVar = True


class ReplyDelta(TimedEvent, kw_only=True, tag="response.output.delta"):
    """Base of a piece of a streamed answer."""

    kind: Literal["text", "audio", "thinking", "tool_call"]
    session_id: str
    input_id: str
    response_id: str
    """The same in all events of one answer."""


class ReplyText(ReplyDelta, kw_only=True, tag="response.output.delta"):
    """The next piece of the answer as text."""

    kind: Literal["text"]
    text: str


class ReplyAudio(ReplyDelta, kw_only=True, tag="response.output.delta"):
    """The next piece of the answer as audio."""

    kind: Literal["audio"]
    audio: OutputAudio


class ReplyThinking(ReplyDelta, kw_only=True, tag="response.output.delta"):
    """The next piece of the model's thinking before it answers: no part of the answer, and never spoken."""

    kind: Literal["thinking"]
    text: str


class ReplyCall(ReplyDelta, kw_only=True, tag="response.output.delta"):
    """The next piece of a call to one of the `tools`."""

    kind: Literal["tool_call"]
    tool_call: CallPiece


class ResponseDone(TimedEvent, kw_only=True, tag="response.done"):
    """The end of an answer."""

    session_id: str
    response_id: str
    input_id: str
    text: str
    """The whole text of the answer."""
    reason: DoneReason
    """`length`: the answer reached `max_new_tokens`, or the context is full."""
    usage: TokenUsage
    """Tokens of this turn."""
    unsupported_fields: list[str] = field(default_factory=list)
    """Paths in `input` of fields that were accepted but have no effect."""
    audio: OutputAudio | None = None
    """The whole audio of a spoken answer that was not streamed."""
    thinking: str = ""
    """The whole thinking of the model; absent if there is none."""
    tool_calls: list[DoneCall] = field(default_factory=list)
    """The complete calls; absent if there are none."""


SERVER_EVENTS = (
    SessionQueued,
    SessionQueueUpdate,
    SessionQueueDone,
    ChatCreated,
    SessionResumed,
    ReplyText,
    ReplyAudio,
    ReplyThinking,
    ReplyCall,
    ResponseDone,
    SessionClosed,
    ErrorEvent,
)
"""Everything that the server may send in this mode."""
