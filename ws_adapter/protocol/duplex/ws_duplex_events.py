"""Events of client and server on `/ws/duplex`."""

from typing import ClassVar, Literal, TypeAlias

from msgspec import Struct, field

from ws_adapter.protocol.wire.errors import ErrorCode
from ws_adapter.protocol.wire.events import (
    Count,
    Fault,
    InputAudio,
    IsGuess,
    OutputAudio,
    Picture,
    Pictures,
    Position,
    Prompt,
    ResumeField,
    ServerEvent,
    SessionMoved,
    SessionResumed,
    Settings,
    Slices,
    VoiceFields,
)

# ----------------------------------------------------------------------------------------------- client


class Prepare(VoiceFields, frozen=True, tag_field="type", tag="prepare"):
    """Opens the session."""

    system_prompt: Prompt | None = None
    prefix_system_prompt: Prompt | None = None
    """Alias of `system_prompt`."""
    instructions: Prompt | None = None
    """Alias of `system_prompt`."""
    config: Settings | None = None
    max_slice_nums: Slices | None = None
    deferred_finalize: bool | None = None
    """Without effect: units are always finalised after their answer."""


class AudioChunk(Struct, frozen=True, tag_field="type", tag="audio_chunk"):
    """A piece of microphone audio in float32, with pictures of the camera. Audio is required without
    `force_listen`."""

    audio_base64: InputAudio | None = None
    audio: InputAudio | None = None
    """Alias of `audio_base64`."""
    audio_data: InputAudio | None = None
    """Alias of `audio_base64`."""
    frame_base64_list: Pictures | None = None
    video_frames: Pictures | None = None
    """Alias of `frame_base64_list`."""
    frames: Pictures | None = None
    """Alias of `frame_base64_list`."""
    video_frame: Picture | None = None
    """A single picture."""
    frame_base64: Picture | None = None
    """Alias of `video_frame`."""
    force_listen: bool | None = None
    """Barge-in: the model listens to this input and all waiting input before it; its open response ends."""
    max_slice_nums: Slices | None = None

    ANY_OF: ClassVar = ("audio_base64", "audio", "audio_data", "force_listen")


class VideoFrame(Struct, frozen=True, tag_field="type", tag="video_frame"):
    """A picture of the camera for the next unit."""

    frame_base64: Picture | None = None
    frame: Picture | None = None
    """Alias of `frame_base64`."""
    image: Picture | None = None
    """Alias of `frame_base64`."""
    data: Picture | None = None
    """Alias of `frame_base64`."""
    video_frame: Picture | None = None
    """Alias of `frame_base64`."""

    ANY_OF: ClassVar = ("frame_base64", "frame", "image", "data", "video_frame")


class Pause(Struct, frozen=True, tag_field="type", tag="pause"):
    """Pauses the session: it takes no input, and keeps its slot."""

    timeout: float | None = None
    """Seconds after which the session ends, clamped to 1 to 300; 60 by default."""


class Resume(Struct, frozen=True, tag_field="type", tag="resume"):
    """Ends the pause."""


class Interrupt(Struct, frozen=True, tag_field="type", tag="interrupt"):
    """Deprecated: the model listens in the next unit."""


class Stop(Struct, frozen=True, tag_field="type", tag="stop"):
    """Ends the session."""


class ClientDiagnostic(Struct, frozen=True, tag_field="type", tag="client_diagnostic"):
    """Diagnostics of the client, with any fields, at most 64 KiB. The server logs their size and digest."""


ClientEvent: TypeAlias = (
    Prepare | AudioChunk | VideoFrame | Pause | Resume | Interrupt | Stop | ClientDiagnostic
)

# ----------------------------------------------------------------------------------------------- server


class Queued(ServerEvent, kw_only=True, tag="queued"):
    """No slot was free at once. `position` counts from 1 over all kinds of session; `eta_seconds` equals
    `estimated_wait_s`."""

    position: Position
    estimated_wait_s: float
    eta_seconds: float
    estimate_is_guess: IsGuess
    ticket_id: str
    queue_length: Count


class QueueUpdate(Queued, kw_only=True, tag="queue_update"):
    """The session is still waiting; sent every 3 s."""


class QueueDone(ServerEvent, kw_only=True, tag="queue_done"):
    """A slot is assigned: the client may send `prepare`."""


class Prepared(ServerEvent, kw_only=True, tag="prepared"):
    """The session is configured and takes input."""

    prompt_length: Count
    """Tokens of the settings: system prompt and voice."""
    session_id: str
    recording_session_id: str | None = None
    """The name of the recording of this session."""
    unsupported_fields: list[str] = field(default_factory=list)
    """Paths in `prepare` of fields that were accepted but have no effect."""
    resume: ResumeField = None

    offers_resume: ClassVar = True


class Result(ServerEvent, kw_only=True, tag="result"):
    """The single answer to a unit. Times are in milliseconds, 0 for phases that did not run."""

    is_listen: bool
    text: str
    end_of_turn: bool
    """The model has ended its turn."""
    current_time: Position
    """The number of the unit, from 1."""
    kv_cache_length: Count
    """Tokens in the context now."""
    cost_llm_ms: float
    cost_tts_prep_ms: float
    cost_tts_ms: float
    cost_token2wav_ms: float
    cost_all_ms: float
    prefill_ms: float
    wall_clock_ms: float
    n_tokens: Count
    n_tts_tokens: Count
    vision_slices: Count
    vision_tokens: Count
    server_send_ts: float
    """The time of sending in Unix seconds."""
    dropped: bool | None = None
    """The unit came too late and was not given to the model."""
    dropped_total: Count | None = None
    """Dropped units of the session so far."""
    ignored_frames: Count | None = None
    """Pictures that were ignored, because the session has no video."""
    audio_data: OutputAudio | None
    """Null while the model listens, else base64 of raw little-endian float32, mono, 24 kHz."""

    tells_time: ClassVar = True
    figures: ClassVar = ""


class Paused(ServerEvent, kw_only=True, tag="paused"):
    """The pause has begun; it may last `timeout` seconds."""

    timeout: float

    pauses: ClassVar = True


class Resumed(ServerEvent, kw_only=True, tag="resumed"):
    """The pause has ended."""

    pauses: ClassVar = False


class Interrupted(ServerEvent, kw_only=True, tag="interrupted"):
    """The model will listen in the next unit."""


class Stopped(ServerEvent, kw_only=True, tag="stopped"):
    """The last event of a session."""

    session_id: str
    reason: Literal["user_stop", "context_full", "server_shutdown", "error"]


class Timeout(ServerEvent, kw_only=True, tag="timeout"):
    """The last event of a session with an expired timer; `reason` names the timer and its seconds."""

    reason: str


class Error(ServerEvent, kw_only=True, tag="error"):
    """An event was refused, a unit failed, or the session ends. `message` repeats `error`."""

    error: str
    code: ErrorCode
    message: str
    trace_id: str | None = None
    """The id by which the operator of the server finds the session."""

    tells_trouble: ClassVar = True

    @property
    def fault(self) -> Fault:
        return Fault(self.code, self.code.is_servers)

    def identify(self, trace_id: str) -> None:
        self.trace_id = trace_id


SERVER_EVENTS = (
    Queued,
    QueueUpdate,
    QueueDone,
    Prepared,
    SessionResumed,
    SessionMoved,
    Result,
    Paused,
    Resumed,
    Interrupted,
    Stopped,
    Timeout,
    Error,
)
"""Everything that the server may send in this dialect."""
