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
    """A turn. It is complete in itself: the server keeps nothing of an earlier one. The answer is spoken only
    if `tts.enabled` or `use_tts_template` says so."""

    input_id: InputId | None = None


class TurnAppend(Struct, frozen=True, tag_field="type", tag="input.append"):
    """Asks for an answer. While one is given, four more may wait."""

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
    """Of the settings: system prompt and voice."""
    unsupported_fields: list[str] = field(default_factory=list)
    """Paths in `payload` of what was accepted but is not honoured."""
    recording_session_id: str | None = None
    """Name of the recording that is made."""
    resume: ResumeField = None

    offers_resume: ClassVar = True


class ReplyDelta(TimedEvent, kw_only=True, tag="response.output.delta"):
    """Base of a piece of a streamed answer."""

    kind: Literal["text", "audio", "thinking", "tool_call"]
    session_id: str
    input_id: str
    response_id: str
    """Equal on all that belongs to one answer."""


class ReplyText(ReplyDelta, kw_only=True, tag="response.output.delta"):
    """More of what the model says, as text."""

    kind: Literal["text"]
    text: str


class ReplyAudio(ReplyDelta, kw_only=True, tag="response.output.delta"):
    """More of what the model says, as audio."""

    kind: Literal["audio"]
    audio: OutputAudio


class ReplyThinking(ReplyDelta, kw_only=True, tag="response.output.delta"):
    """More of what the model thinks before it answers: no part of the answer, and never spoken."""

    kind: Literal["thinking"]
    text: str


class ReplyCall(ReplyDelta, kw_only=True, tag="response.output.delta"):
    """More of a call to one of the `tools`."""

    kind: Literal["tool_call"]
    tool_call: CallPiece


class ResponseDone(TimedEvent, kw_only=True, tag="response.done"):
    """The end of an answer."""

    session_id: str
    response_id: str
    input_id: str
    text: str
    """All of it."""
    reason: DoneReason
    """`length`: `max_new_tokens` were spent, or the context is full."""
    usage: TokenUsage
    """Of this turn."""
    unsupported_fields: list[str] = field(default_factory=list)
    """Paths in `input` of what was accepted but is not honoured."""
    audio: OutputAudio | None = None
    """All of it, if the answer was not streamed and is spoken."""
    thinking: str = ""
    """All that the model thought; absent if nothing."""
    tool_calls: list[DoneCall] = field(default_factory=list)
    """The calls that are complete; absent if there are none."""


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
