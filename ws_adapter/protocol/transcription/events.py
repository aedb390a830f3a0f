"""Events of `/v1/transcription`, the realtime protocol of vLLM.

In this protocol `error` is a plain text, and fields without a value are written as `null`.
`ws_adapter.protocol.wire.events` explains `REQUIRED`.
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

    # Client errors: the event changes nothing.
    INVALID_JSON = "invalid_json"
    INVALID_FRAME = "invalid_frame"
    UNKNOWN_EVENT = "unknown_event"
    INVALID_EVENT = "invalid_event"
    MODEL_NOT_FOUND = "model_not_found"
    MODEL_NOT_VALIDATED = "model_not_validated"
    INVALID_AUDIO = "invalid_audio"
    BUFFER_FULL = "buffer_full"
    # Errors about some audio or an utterance; `_SERVERS` names those that the server causes.
    PROCESSING_ERROR = "processing_error"
    QUEUE_FULL = "queue_full"
    SERVICE_UNAVAILABLE = "service_unavailable"
    IDLE_TIMEOUT = "idle_timeout"
    CONTEXT_FULL = "context_full"
    # Errors that close the connection.
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
    """Choose the model of later utterances. No event confirms it; other fields are ignored."""

    model: Model | None = None
    trace_context: TraceContext = None

    REQUIRED: ClassVar = ("model",)


class AudioAppend(Struct, frozen=True, tag_field="type", tag="input_audio_buffer.append"):
    """Audio for the open utterance, or for the next one if none is open."""

    audio: Pcm16 | None = None
    trace_context: TraceContext = None

    REQUIRED: ClassVar = ("audio",)


class AudioCommit(Struct, frozen=True, tag_field="type", tag="input_audio_buffer.commit"):
    """Begin an utterance, or with `final` end it."""

    final: Finality = False
    """Also a word in upper or lower case: true, yes, on or 1; false, no, off or 0."""


ClientEvent: TypeAlias = SessionUpdate | AudioAppend | AudioCommit


# ----------------------------------------------------------------------------------------------- server


class SessionCreated(ServerEvent, kw_only=True, tag="session.created"):
    """The first event, sent before the server reads any event."""

    id: Annotated[str, Meta(pattern="^sess-[0-9a-f]{32}$")]
    created: Count
    """Unix seconds."""
    event_id: str | UnsetType = UNSET
    """Only on `/v1/realtime?intent=transcription`, where a client may speak OpenAI's protocol."""
    session: Annotated[dict[str, Any], Meta(description="Only where `event_id` is.")] | UnsetType = UNSET
    resume: ResumeField = None

    offers_resume: ClassVar = True


class Delta(ServerEvent, kw_only=True, tag="transcription.delta"):
    """Further text of the utterance."""

    delta: Annotated[str, Meta(min_length=1)]


class Usage(Struct):
    """Tokens of an utterance."""

    prompt_tokens: Count
    """Input tokens of the first step; later input is not counted."""
    total_tokens: Count
    """The sum of the other two."""
    completion_tokens: Count
    """All sampled tokens, including those without text."""
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
    """A text for people."""
    code: Code

    tells_trouble: ClassVar = True

    @property
    def fault(self) -> Fault:
        return Fault(self.code, self.code in _SERVERS)


class Refused(Error, kw_only=True, tag="error"):
    """An event was refused, which is the client's fault with any code."""

    @property
    def fault(self) -> Fault:
        return Fault(self.code, is_servers=False)


SERVER_EVENTS: Final = (SessionCreated, SessionResumed, Delta, Done, Error)
