"""Events of client and server in the current dialect of `/v1/realtime`."""

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta, Struct, field

from ws_adapter.protocol.wire.events import (
    AudioEncoding,
    Count,
    ErrorEvent,
    InputAudio,
    InputId,
    InputRate,
    Metrics,
    OutputAudio,
    Pictures,
    Prompt,
    ResumeField,
    ServerEvent,
    SessionMoved,
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


class InitPayload(VoiceFields, frozen=True):
    """The settings of a session. Voice fields are also accepted here; those inside `voice` win."""

    system_prompt: Prompt | None = None
    instructions: Prompt | None = None
    """Alias of `system_prompt`."""
    config: Settings | None = None
    duplex: Settings | None = None
    """Alias of `config`."""
    voice: VoiceFields | None = None
    defaults: VoiceFields | None = None
    """Alias of `voice`."""
    max_slice_nums: Slices | None = None
    use_tts: bool | None = None
    """False: text only, as with `config.generate_audio`."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """The same seed and input give the same output. Random by default."""
    model: str | None = None
    """Name of a served model; any served model by default."""
    mode: Any = None
    """Ignored: the URL decides."""
    tools: list[Any] | None = None
    """Without effect."""


class SessionInit(Struct, frozen=True, tag_field="type", tag="session.init"):
    """Opens the session. `payload` is required and may be empty."""

    payload: InitPayload | None = None
    trace_context: TraceContext = None

    REQUIRED: ClassVar = ("payload",)


class AudioObject(Struct, frozen=True):
    """The long spelling of `audio`."""

    data: InputAudio | None = None
    base64: InputAudio | None = None
    """Alias of `data`."""
    audio_base64: InputAudio | None = None
    """Alias of `data`."""

    ANY_OF: ClassVar = ("data", "base64", "audio_base64")


class Hints(Struct, frozen=True):
    """Older location of two fields of an append."""

    force_listen: bool | None = None
    max_slice_nums: Slices | None = None


class AppendInput(Struct, frozen=True):
    """A piece of microphone audio, with pictures of the camera. Audio is required without `force_listen`."""

    audio: InputAudio | AudioObject | None = None
    audio_base64: InputAudio | None = None
    """Alias of `audio`."""
    audio_data: InputAudio | None = None
    """Alias of `audio`."""
    video_frames: Pictures | None = None
    frame_base64_list: Pictures | None = None
    """Alias of `video_frames`."""
    frames: Pictures | None = None
    """Alias of `video_frames`."""
    force_listen: bool | None = None
    """Barge-in: the model listens to this input and all waiting input before it; its open response ends."""
    max_slice_nums: Slices | None = None
    hints: Hints | None = None
    input_id: InputId | None = None
    format: AudioEncoding | None = None
    sample_rate: InputRate | None = None
    sample_rate_hz: InputRate | None = None
    """Alias of `sample_rate`."""

    ANY_OF: ClassVar = ("audio", "audio_base64", "audio_data", "force_listen", "hints.force_listen")


class InputAppend(Struct, frozen=True, tag_field="type", tag="input.append"):
    """More input: an append of any length. Units of one second are cut from the stream of appends."""

    input: AppendInput | None = None
    trace_context: TraceContext = None

    REQUIRED: ClassVar = ("input",)


class SessionClose(Struct, frozen=True, tag_field="type", tag="session.close"):
    """Ends the session."""

    reason: str | None = None
    """Repeated in `session.closed` of the current dialect if it matches `[a-z0-9_]{1,64}`."""


ClientEvent: TypeAlias = SessionInit | InputAppend | SessionClose

# ----------------------------------------------------------------------------------------------- server


class TimedEvent(ServerEvent, kw_only=True):
    """Base of the events that carry figures and the time of sending."""

    metrics: Metrics
    server_send_ts: float = 0.0
    """The time of sending in Unix seconds."""

    REQUIRED: ClassVar = ("server_send_ts",)
    tells_time: ClassVar = True
    figures: ClassVar = "metrics"


class SessionCreated(TimedEvent, kw_only=True, tag="session.created"):
    """The session is configured and takes input."""

    session_id: str
    mode: Literal["full_duplex"]
    usage: TokenUsage
    """Tokens of the settings: system prompt and voice."""
    unsupported_fields: list[str] = field(default_factory=list)
    """Paths in `payload` of fields that were accepted but have no effect."""
    recording_session_id: str | None = None
    """The name of the recording of this session."""
    resume: ResumeField = None

    offers_resume: ClassVar = True


class OutputDelta(TimedEvent, kw_only=True, tag="response.output.delta"):
    """Base of the events of a unit's output. Each has the figures of the unit, the first also its tokens."""

    kind: Literal["listen", "text", "audio"]
    session_id: str
    input_id: str
    """The append that completed the unit."""
    response_id: str | None = None
    """The same in all events of one turn of the model."""
    chunk_index: Count | None = None
    """The number of the unit, from 0; only in the first event of the unit."""
    usage: TokenUsage | None = None
    """Tokens of the session so far; only in the first event of a unit."""
    chunk_usage: TokenUsage | None = None
    """Tokens of this unit; only in its first event."""


class ListenDelta(OutputDelta, kw_only=True, tag="response.output.delta"):
    """The model listens. With `response_id` that response is over; without `reason` it was interrupted."""

    kind: Literal["listen"]
    reason: Literal["turn_end"] | None = None
    """The model has ended its turn."""


class TextDelta(OutputDelta, kw_only=True, tag="response.output.delta"):
    """Text of a unit."""

    kind: Literal["text"]
    text: str


class AudioDelta(OutputDelta, kw_only=True, tag="response.output.delta"):
    """Audio of a unit."""

    kind: Literal["audio"]
    audio: OutputAudio


class Diagnostic(Struct, omit_defaults=True):
    """The reason for the end of the session."""

    message: str
    """A sentence for people."""
    trace_id: str | None = None
    """The id by which the operator of the server finds the session."""


class SessionClosed(ServerEvent, kw_only=True, tag="session.closed"):
    """The last event of a session. `session_id` and `usage` are absent before `session.created`."""

    reason: Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,64}$")]
    """After `session.close`: the client's reason, `client_closed` if that does not match the pattern, or
    `user_stop` by default. Otherwise `timeout`, `context_full`, `server_shutdown`, `backend_error` or
    `slow_consumer`."""
    session_id: str | None = None
    usage: TokenUsage | None = None
    diagnostic: Diagnostic | None = None

    tells_trouble: ClassVar = True

    def identify(self, trace_id: str) -> None:
        if self.diagnostic is not None:
            self.diagnostic.trace_id = trace_id


SERVER_EVENTS = (
    SessionQueued,
    SessionQueueUpdate,
    SessionQueueDone,
    SessionCreated,
    SessionResumed,
    SessionMoved,
    ListenDelta,
    TextDelta,
    AudioDelta,
    SessionClosed,
    ErrorEvent,
)
"""Everything that the server may send in this dialect."""
