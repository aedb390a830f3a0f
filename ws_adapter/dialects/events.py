"""Events of `/v1/realtime`, dialect G3: what a client may send and what the server sends.

The structs are the single definition of each event: decoding, validation and its messages come from them.
`null` for an optional field equals its absence; unknown fields are ignored.
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

MAX_PROMPT_CHARACTERS = 32_768
MAX_INPUT_ID_CHARACTERS = 128

Prompt: TypeAlias = Annotated[str, Meta(max_length=MAX_PROMPT_CHARACTERS)]
Slices: TypeAlias = Annotated[int, Meta(ge=1, le=9)]

# ----------------------------------------------------------------------------------------------- client


class VoiceFields(Struct, frozen=True):
    """Reference audio: base64 of a WAV file or of raw float32 at 16 kHz, or the id of a registered voice."""

    ref_audio_base64: str | None = None
    ref_audio: str | None = None
    tts_ref_audio_base64: str | None = None
    tts_ref_audio: str | None = None
    ref_audio_path: str | None = None


class InitPayload(VoiceFields, frozen=True):
    """What a session is to be. Voice fields are also accepted here; those inside `voice` win."""

    system_prompt: Prompt | None = None
    instructions: Prompt | None = None
    config: dict[str, Any] | None = None
    duplex: dict[str, Any] | None = None
    voice: VoiceFields | None = None
    defaults: VoiceFields | None = None
    max_slice_nums: Slices | None = None
    use_tts: bool | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    model: str | None = None
    mode: Any = None
    tools: list[Any] | None = None


class SessionInit(Struct, frozen=True, tag_field="type", tag="session.init"):
    """Opens the session. `payload` is required and may be empty."""

    payload: InitPayload | None = None


class AudioObject(Struct, frozen=True):
    """The long spelling of `audio`."""

    data: str | None = None
    base64: str | None = None
    audio_base64: str | None = None


class Hints(Struct, frozen=True):
    """An older place of two fields of an append."""

    force_listen: bool | None = None
    max_slice_nums: Slices | None = None


class AppendInput(Struct, frozen=True):
    """A slice of the microphone: base64 of mono PCM, 16 kHz."""

    audio: str | AudioObject | None = None
    audio_base64: str | None = None
    audio_data: str | None = None
    video_frames: list[Any] | None = None
    frame_base64_list: list[Any] | None = None
    frames: list[Any] | None = None
    force_listen: bool | None = None
    max_slice_nums: Slices | None = None
    hints: Hints | None = None
    input_id: Annotated[str, Meta(max_length=MAX_INPUT_ID_CHARACTERS)] | None = None
    format: Literal["f32", "pcm16"] | None = None
    sample_rate: Literal[16000] | None = None
    sample_rate_hz: Literal[16000] | None = None


class InputAppend(Struct, frozen=True, tag_field="type", tag="input.append"):
    """More input."""

    input: AppendInput | None = None


class SessionClose(Struct, frozen=True, tag_field="type", tag="session.close"):
    """Ends the session."""

    reason: str | None = None


ClientEvent: TypeAlias = SessionInit | InputAppend | SessionClose

# ----------------------------------------------------------------------------------------------- server


class InputTokenDetails(Struct, frozen=True):
    """Input tokens by kind."""

    text_tokens: int
    audio_tokens: int
    vision_tokens: int
    cached_tokens: int


class OutputTokenDetails(Struct, frozen=True):
    """Output tokens by kind."""

    text_tokens: int
    audio_tokens: int


class TokenUsage(Struct, frozen=True):
    """Tokens consumed and produced, of a unit or of the session so far."""

    total_tokens: int
    input_tokens: int
    output_tokens: int
    input_token_details: InputTokenDetails
    output_token_details: OutputTokenDetails


class Metrics(Struct, omit_defaults=True):
    """Figures beside an event; what is not known is absent. Times in milliseconds, lengths in tokens."""

    kv_cache_length: int | None = None
    n_past_max: int | None = None
    prompt_length: int | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    generate_ms: float | None = None
    cost_llm_ms: float | None = None
    cost_tts_ms: float | None = None
    cost_token2wav_ms: float | None = None
    wall_clock_ms: float | None = None
    n_tokens: int | None = None
    n_tts_tokens: int | None = None
    padded_samples: int | None = None
    clipped_samples: int | None = None
    dropped: bool | None = None
    dropped_total: int | None = None
    ignored_frames: int | None = None
    injected_silence: bool | None = None


class ServerEvent(Struct, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of everything the server sends. Optional fields without a value are omitted."""


class SessionQueued(ServerEvent, kw_only=True, tag="session.queued"):
    """No slot was free at once. `position` counts from 1 over all kinds of session."""

    position: int
    estimated_wait_s: float
    ticket_id: str
    queue_length: int


class SessionQueueUpdate(SessionQueued, kw_only=True, tag="session.queue_update"):
    """Still waiting; sent every 3 s."""


class SessionQueueDone(ServerEvent, kw_only=True, tag="session.queue_done"):
    """A slot is assigned: `session.init` may come."""


class TimedEvent(ServerEvent, kw_only=True):
    """Base of the events that carry figures and the time of sending (Unix seconds)."""

    metrics: Metrics
    server_send_ts: float = 0.0


class SessionCreated(TimedEvent, kw_only=True, tag="session.created"):
    """The session takes input. `unsupported_fields` are paths of `payload` accepted but not honoured."""

    session_id: str
    mode: Literal["full_duplex"]
    unsupported_fields: list[str] = field(default_factory=list)


class OutputDelta(TimedEvent, kw_only=True, tag="response.output.delta"):
    """Base of one branch of a unit's output; the first event of a unit carries its index and usage."""

    kind: Literal["listen", "text", "audio"]
    session_id: str
    input_id: str
    response_id: str | None = None
    chunk_index: int | None = None
    usage: TokenUsage | None = None
    chunk_usage: TokenUsage | None = None


class ListenDelta(OutputDelta, kw_only=True, tag="response.output.delta"):
    """The model listens; with `reason` its turn has ended."""

    kind: Literal["listen"]
    reason: Literal["turn_end"] | None = None


class TextDelta(OutputDelta, kw_only=True, tag="response.output.delta"):
    """What the model says, as text."""

    kind: Literal["text"]
    text: str


class AudioDelta(OutputDelta, kw_only=True, tag="response.output.delta"):
    """What the model says, as float32 little-endian mono at 24 kHz, base64 on the wire.

    `audio` stays the last field: the encoder writes it behind everything else.
    """

    kind: Literal["audio"]
    audio: bytes


class Diagnostic(Struct, frozen=True):
    """A sentence for people."""

    message: str


class SessionClosed(ServerEvent, kw_only=True, tag="session.closed"):
    """The last event of a session. `session_id` is absent before `session.created`."""

    reason: str
    session_id: str | None = None
    usage: TokenUsage | None = None
    diagnostic: Diagnostic | None = None


class ErrorBody(Struct, omit_defaults=True):
    """What went wrong. `param` is the path of the field, from the root of the event."""

    code: str
    message: str
    type: Literal["client_error", "server_error"]
    param: str | None = None
    input_id: str | None = None


class ErrorEvent(ServerEvent, kw_only=True, tag="error"):
    """An event was refused, a unit failed, or the session ends."""

    error: ErrorBody
