"""Events of `/v1/realtime`, dialect G3: what a client may send and what the server sends."""

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
    """The same seed and input give the same output. Random without it."""
    model: str | None = None
    """Name of a served model; the one there is without it."""
    mode: Any = None
    """Ignored: the URL decides."""
    tools: list[Any] | None = None
    """Not honoured."""


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
    """An older place of two fields of an append."""

    force_listen: bool | None = None
    max_slice_nums: Slices | None = None


class AppendInput(Struct, frozen=True):
    """A slice of the microphone and what the camera saw. Without `force_listen` there has to be audio."""

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
    """The model listens to this input and all that waits before it; what it was saying ends."""
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
    """Comes back in `session.closed` of the current dialect if it matches `[a-z0-9_]{1,64}`."""


ClientEvent: TypeAlias = SessionInit | InputAppend | SessionClose

# ----------------------------------------------------------------------------------------------- server


class TimedEvent(ServerEvent, kw_only=True):
    """Base of the events that carry figures and the time of sending."""

    metrics: Metrics
    server_send_ts: float = 0.0
    """Unix seconds of the moment of sending."""

    REQUIRED: ClassVar = ("server_send_ts",)
    tells_time: ClassVar = True
    figures: ClassVar = "metrics"


class SessionCreated(TimedEvent, kw_only=True, tag="session.created"):
    """Return the event for a session that takes input."""

    session_id: str
    mode: Literal["full_duplex"]
    usage: TokenUsage
    """Of the settings: system prompt and voice."""
    unsupported_fields: list[str] = field(default_factory=list)
    """Paths in `payload` of what was accepted but is not honoured."""
    recording_session_id: str | None = None
    """Name of the recording that is made."""
    resume: ResumeField = None

    offers_resume: ClassVar = True


class OutputDelta(TimedEvent, kw_only=True, tag="response.output.delta"):
    """Base of one branch of a unit's output: each has the unit's figures, its first event its tokens too."""

    kind: Literal["listen", "text", "audio"]
    session_id: str
    input_id: str
    """The append that completed the unit."""
    response_id: str | None = None
    """Equal on all that belongs to one turn of the model."""
    chunk_index: Count | None = None
    """Counts units from 0; on the first event of each."""
    usage: TokenUsage | None = None
    """Of the session so far; on the first event of a unit."""
    chunk_usage: TokenUsage | None = None
    """Of this unit; on its first event."""


class ListenDelta(OutputDelta, kw_only=True, tag="response.output.delta"):
    """The model listens: with `response_id` that response is over, interrupted unless there is a `reason`."""

    kind: Literal["listen"]
    reason: Literal["turn_end"] | None = None
    """The model has said all that it wanted to."""


class TextDelta(OutputDelta, kw_only=True, tag="response.output.delta"):
    """Text of a unit."""

    kind: Literal["text"]
    text: str


class AudioDelta(OutputDelta, kw_only=True, tag="response.output.delta"):
    """Audio of a unit."""

    kind: Literal["audio"]
    audio: OutputAudio


class Diagnostic(Struct, omit_defaults=True):
    """Why it ended."""

    message: str
    """A sentence for people."""
    trace_id: str | None = None
    """By which the operator of the server finds the session."""


class SessionClosed(ServerEvent, kw_only=True, tag="session.closed"):
    """The last event of a session. `session_id` and `usage` are absent before `session.created`."""

    reason: Annotated[str, Meta(pattern=r"^[a-z0-9_]{1,64}$")]
    """`user_stop` or the client's own, `client_closed` if that cannot be repeated; `timeout`,
    `context_full`, `server_shutdown`, `backend_error` or `slow_consumer`."""
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
