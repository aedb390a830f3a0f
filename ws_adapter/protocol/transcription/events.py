"""Events of `/v1/transcription`, the realtime protocol of vLLM; see `events` for how they are read.

Here `error` is a plain text, and what has no value is written as `null`.
"""

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from ws_adapter.protocol.wire.events import (
    Count,
    Fault,
    ResumeField,
    ServerEvent,
    SessionResumed,
    TraceContext,
)


class Code(StrEnum):
    """Error codes, for programs."""

    # The client's; the event changes nothing.
    INVALID_JSON = "invalid_json"
    INVALID_FRAME = "invalid_frame"
    UNKNOWN_EVENT = "unknown_event"
    INVALID_EVENT = "invalid_event"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_NOT_VALIDATED = "model_not_validated"
    INVALID_AUDIO = "invalid_audio"
    BUFFER_FULL = "buffer_full"
    # The server's; some audio or an utterance is concerned.
    PROCESSING_ERROR = "processing_error"
    QUEUE_FULL = "queue_full"
    SERVICE_UNAVAILABLE = "service_unavailable"
    IDLE_TIMEOUT = "idle_timeout"
    CONTEXT_FULL = "context_full"
    # The connection closes.
    UNSUPPORTED_MODE = "unsupported_mode"
    UNAUTHORIZED = "unauthorized"
    RESUME_FAILED = "resume_failed"
    QUOTA_EXCEEDED = "quota_exceeded"
    SLOW_CONSUMER = "slow_consumer"
    RATE_LIMITED = "rate_limited"


_SERVERS: Final = frozenset({Code.PROCESSING_ERROR, Code.QUEUE_FULL, Code.SERVICE_UNAVAILABLE})


# ----------------------------------------------------------------------------------------------- client

TRUE_WORDS: Final = frozenset({"true", "yes", "on", "1"})
FALSE_WORDS: Final = frozenset({"false", "no", "off", "0"})
_WORD: Final = "|".join(
    "".join(f"[{c.upper()}{c}]" if c.isalpha() else c for c in word)
    for word in sorted(TRUE_WORDS | FALSE_WORDS)
)

Model: TypeAlias = Annotated[str, Meta(description="A model of `/v1/models`.")]
Pcm16: TypeAlias = Annotated[
    str,
    Meta(
        description="Base64 of little-endian int16, mono, 16 kHz.",
        extra_json_schema={"contentEncoding": "base64"},
    ),
]
Finality: TypeAlias = (
    bool
    | Annotated[int, Meta(ge=0, le=1)]
    | Annotated[str, Meta(extra_json_schema={"pattern": f"^({_WORD})$"})]
)


class SessionUpdate(Struct, frozen=True, tag_field="type", tag="session.update"):
    """Choose the model of the utterances that follow; success is silent. Nothing else in it is looked at."""

    model: Model | None = None
    trace_context: TraceContext = None

    REQUIRED: ClassVar = ("model",)


class AudioAppend(Struct, frozen=True, tag_field="type", tag="input_audio_buffer.append"):
    """Audio: for the open utterance, else for the next one."""

    audio: Pcm16 | None = None
    trace_context: TraceContext = None

    REQUIRED: ClassVar = ("audio",)


class AudioCommit(Struct, frozen=True, tag_field="type", tag="input_audio_buffer.commit"):
    """Begin an utterance, or with `final` end it."""

    final: Finality = False
    """Words count in any case: true, yes, on and 1; false, no, off and 0."""


ClientEvent: TypeAlias = SessionUpdate | AudioAppend | AudioCommit


# ----------------------------------------------------------------------------------------------- server


class SessionCreated(ServerEvent, kw_only=True, tag="session.created"):
    """The first event, sent before anything is read."""

    id: Annotated[str, Meta(pattern="^sess-[0-9a-f]{32}$")]
    created: Count
    """Unix seconds."""
    event_id: str | UnsetType = UNSET
    """Only on `/v1/realtime?intent=transcription`, where a client may speak OpenAI's protocol."""
    session: Annotated[dict[str, Any], Meta(description="See `event_id`.")] | UnsetType = UNSET
    resume: ResumeField = None

    offers_resume: ClassVar = True


class Delta(ServerEvent, kw_only=True, tag="transcription.delta"):
    """Further text of the utterance."""

    delta: Annotated[str, Meta(min_length=1)]


class Usage(Struct):
    """Tokens of an utterance."""

    prompt_tokens: Count
    """Input of its first step; what came later is not added."""
    total_tokens: Count
    """Both others together."""
    completion_tokens: Count
    """All sampled ids, those without text included."""
    prompt_tokens_details: None
    completion_tokens_details: None


class Done(ServerEvent, kw_only=True, tag="transcription.done"):
    """The utterance is complete."""

    text: str
    """All its deltas, joined."""
    usage: Usage


class Error(ServerEvent, kw_only=True, tag="error"):
    """An event was refused, or an utterance failed; the connection stays open unless the table of codes says
    otherwise."""

    error: str
    """For people."""
    code: Code

    tells_trouble: ClassVar = True

    @property
    def fault(self) -> Fault:
        return Fault(self.code, self.code in _SERVERS)


class Refused(Error, kw_only=True, tag="error"):
    """An event was refused: that is the client's fault, whatever the code."""

    @property
    def fault(self) -> Fault:
        return Fault(self.code, is_servers=False)


SERVER_EVENTS: Final = (SessionCreated, SessionResumed, Delta, Done, Error)
