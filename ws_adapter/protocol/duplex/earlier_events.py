"""Events of client and server in the earlier dialect of `/v1/realtime`."""

from typing import Annotated, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct, field

from ws_adapter.protocol.duplex.realtime_events import SessionClose
from ws_adapter.protocol.wire.events import (
    MAX_PROMPT_CHARACTERS,
    AudioEncoding,
    Count,
    ErrorEvent,
    InputAudio,
    InputId,
    InputRate,
    Metrics,
    OutputAudio,
    Pictures,
    ResumeField,
    ServerEvent,
    SessionQueued,
    SessionQueueDone,
    SessionQueueUpdate,
    SessionResumed,
    Settings,
    Slices,
    TokenUsage,
    TraceContext,
    VoiceFields,
)

# ----------------------------------------------------------------------------------------------- client


Instructions: TypeAlias = Annotated[
    str,
    Meta(min_length=0, max_length=MAX_PROMPT_CHARACTERS, description="The system prompt; empty for none."),
]


class SessionFields(VoiceFields, frozen=True):
    """The settings of a session."""

    instructions: Instructions | None = None
    voice_config: Settings | None = None
    config: Settings | None = None
    """Alias of `voice_config`."""
    max_slice_nums: Slices | None = None

    REQUIRED: ClassVar = ("instructions",)


class SessionUpdate(Struct, frozen=True, tag_field="type", tag="session.update"):
    """Opens the session."""

    session: SessionFields | None = None
    trace_context: TraceContext = None

    REQUIRED: ClassVar = ("session",)


class AudioAppend(Struct, frozen=True, tag_field="type", tag="input_audio_buffer.append"):
    """A piece of microphone audio, with pictures of the camera. Audio is required without `force_listen`."""

    audio: InputAudio | None = None
    video_frames: Pictures | None = None
    force_listen: bool | None = None
    """Barge-in: the model listens to this input and all waiting input before it; its open response ends."""
    max_slice_nums: Slices | None = None
    input_id: InputId | None = None
    format: AudioEncoding | None = None
    sample_rate: InputRate | None = None
    sample_rate_hz: InputRate | None = None
    """Alias of `sample_rate`."""
    trace_context: TraceContext = None

    ANY_OF: ClassVar = ("audio", "force_listen")


ClientEvent: TypeAlias = SessionUpdate | AudioAppend | SessionClose

# ----------------------------------------------------------------------------------------------- server


EndReason: TypeAlias = Literal[
    "stopped", "timeout", "context_full", "server_shutdown", "error", "slow_consumer"
]


class SessionCreated(ServerEvent, kw_only=True, tag="session.created"):
    """The session is configured and takes input."""

    session_id: str
    prompt_length: Count
    """Tokens of the settings: system prompt and voice."""
    usage: TokenUsage
    """The same tokens by kind."""
    recording_session_id: str | None = None
    """The name of the recording of this session."""
    unsupported_fields: list[str] = field(default_factory=list)
    """Paths in `session` of fields that were accepted but have no effect."""
    resume: ResumeField = None

    offers_resume: ClassVar = True


class OutputEvent(ServerEvent, kw_only=True):
    """Base of the single answer to a unit."""

    kv_cache_length: Count
    """Tokens in the context now."""
    input_id: str
    """The append that completed the unit."""
    metrics: Metrics

    figures: ClassVar = "metrics"


class AudioDelta(OutputEvent, kw_only=True, tag="response.output_audio.delta"):
    """The text and audio of one unit together; each may be empty."""

    response_id: str
    """The same in all events of one turn of the model."""
    text: str
    end_of_turn: bool
    """The model has ended its turn."""
    audio: OutputAudio


class Listen(OutputEvent, kw_only=True, tag="response.listen"):
    """The model listens; with `response_id` that response was interrupted."""

    response_id: str | None = None


class SessionClosed(ServerEvent, kw_only=True, tag="session.closed"):
    """The last event of a session; `stopped`: the client ended the session."""

    reason: EndReason
    session_id: str


SERVER_EVENTS = (
    SessionQueued,
    SessionQueueUpdate,
    SessionQueueDone,
    SessionCreated,
    SessionResumed,
    AudioDelta,
    Listen,
    SessionClosed,
    ErrorEvent,
)
"""Everything that the server may send in this dialect."""
