"""Events of `/v1/live/sessions`, the full-duplex protocol of OpenAI.

The names and forms are those of the official SDK (`openai.types.live`). Unlike in most other dialects, an
unknown field is refused at any depth. `ws_adapter.protocol.wire.events` explains `REQUIRED`.
"""

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from ws_adapter.protocol.duplex.texts import MOST_BYTES
from ws_adapter.protocol.wire.events import (
    MAX_EVENT_ID_CHARACTERS,
    MAX_PROMPT_CHARACTERS,
    Count,
    Fault,
    ResumeField,
    ServerEvent,
    SessionResumed,
)

MAX_HISTORY: Final = 128
"""The most messages from before a session."""


class Code(StrEnum):
    """Error codes, for programs."""

    # Client errors: the event changes nothing.
    INVALID_JSON = "invalid_json"
    INVALID_VALUE = "invalid_value"
    MISSING_PARAMETER = "missing_required_parameter"
    UNKNOWN_PARAMETER = "unknown_parameter"
    MODEL_NOT_FOUND = "model_not_found"
    NOT_STARTED = "session_not_started"
    ALREADY_STARTED = "session_already_started"
    UNSUPPORTED = "unsupported"
    # Client errors that close the connection.
    INVALID_FRAME = "invalid_frame"
    RATE_LIMITED = "rate_limit_exceeded"
    SLOW_CONSUMER = "slow_consumer"
    INVALID_KEY = "invalid_api_key"
    RESUME_FAILED = "resume_failed"
    INSUFFICIENT_QUOTA = "insufficient_quota"
    QUEUE_CANCELLED = "queue_cancelled"
    UNSUPPORTED_MODE = "unsupported_mode"
    # Server errors.
    INFERENCE_FAILED = "inference_failed"
    CONTEXT_FULL = "context_window_full"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    UNAVAILABLE = "service_unavailable"


_SERVERS: Final = frozenset(
    {Code.INFERENCE_FAILED, Code.CONTEXT_FULL, Code.QUEUE_FULL, Code.QUEUE_TIMEOUT, Code.UNAVAILABLE}
)

EventId: TypeAlias = Annotated[
    str,
    Meta(
        max_length=MAX_EVENT_ID_CHARACTERS,
        description="The client's id of this event; events that answer it have it as `client_event_id`.",
    ),
]
LiveAudio: TypeAlias = Annotated[
    str,
    Meta(
        description="Base64 of raw mono audio in the format of the session; it may be cut anywhere.",
        extra_json_schema={"contentEncoding": "base64"},
    ),
]


# ----------------------------------------------------------------------------------------------- client


class PcmFormat(Struct, frozen=True, tag_field="type", tag="audio/pcm", forbid_unknown_fields=True):
    """Little-endian int16."""

    rate: Literal[16000, 24000] | None = None

    REQUIRED: ClassVar = ("rate",)


class PcmuFormat(Struct, frozen=True, tag_field="type", tag="audio/pcmu", forbid_unknown_fields=True):
    """G.711 mu-law, the law of North America and Japan."""

    rate: Literal[8000] | None = None

    REQUIRED: ClassVar = ("rate",)


class PcmaFormat(Struct, frozen=True, tag_field="type", tag="audio/pcma", forbid_unknown_fields=True):
    """G.711 A-law, the law of all other countries."""

    rate: Literal[8000] | None = None

    REQUIRED: ClassVar = ("rate",)


class VoiceId(Struct, frozen=True, forbid_unknown_fields=True):
    """A voice that is registered with the server."""

    id: str | None = None

    REQUIRED: ClassVar = ("id",)


class OutputConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The voice of the model's audio."""

    voice: str | VoiceId | None = None
    """A registered voice, or one of OpenAI's names, which stand for the model's own voice."""


class AudioConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The audio format and the voice."""

    format: PcmFormat | PcmuFormat | PcmaFormat | None = None
    """The format of both directions; PCM at 24 kHz by default."""
    output: OutputConfig | None = None


class DelegationConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Delegation settings. No model here delegates, as an `info` event says."""

    type: Literal["client", "responses"] | None = None
    acknowledgement_delay_ms: Annotated[int, Meta(ge=0)] | None = None
    responses: dict[str, Any] | None = None
    """Settings of the delegate; returned as given, without effect."""

    REQUIRED: ClassVar = ("type",)


class InputText(Struct, frozen=True, forbid_unknown_fields=True):
    """A written text."""

    text: str | None = None
    type: Literal["input_text"] | None = None

    REQUIRED: ClassVar = ("text",)


class OutputText(Struct, frozen=True, forbid_unknown_fields=True):
    """A text that the model said."""

    text: str | None = None
    type: Literal["text", "output_text"] | None = None

    REQUIRED: ClassVar = ("text",)


class Message(Struct, frozen=True, tag_field="role", forbid_unknown_fields=True):
    """A message from before the session."""

    id: str | None = None
    status: Literal["incomplete", "completed"] | None = None
    type: Literal["message"] | None = None


_ONE: Final = {"minItems": 1, "maxItems": 1}
_NONE: Final = {"maxItems": 0}

_Inputs: TypeAlias = Annotated[list[InputText], Meta(description="Exactly one part.", extra_json_schema=_ONE)]
_Triggers: TypeAlias = Annotated[
    list[Any],
    Meta(description="Only an empty list: no service makes decisions here.", extra_json_schema=_NONE),
]


class DeveloperMessage(Message, frozen=True, tag="developer", forbid_unknown_fields=True):
    """A message of the application."""

    content: _Inputs | None = None

    REQUIRED: ClassVar = ("content",)


class UserMessage(Message, frozen=True, tag="user", forbid_unknown_fields=True):
    """A message of the user."""

    content: _Inputs | None = None

    REQUIRED: ClassVar = ("content",)


class AssistantMessage(Message, frozen=True, tag="assistant", forbid_unknown_fields=True):
    """A message of the model."""

    content: (
        Annotated[list[OutputText], Meta(description="Exactly one part.", extra_json_schema=_ONE)] | None
    ) = None

    REQUIRED: ClassVar = ("content",)


HistoryMessage: TypeAlias = DeveloperMessage | UserMessage | AssistantMessage


class SessionConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a session; only `delegation` can be changed later."""

    model: str | None = None
    """A model of `/v1/models`."""
    instructions: Annotated[str, Meta(max_length=MAX_PROMPT_CHARACTERS)] | None = None
    """The system prompt; absent or blank, the default of the server."""
    audio: AudioConfig | None = None
    delegation: DelegationConfig | None = None
    input: Annotated[list[HistoryMessage], Meta(max_length=MAX_HISTORY)] | None = None
    """The messages before the session, oldest first."""
    store: Annotated[bool, Meta(extra_json_schema={"not": {"const": True}})] | None = None
    """Only false: sessions cannot be forked."""
    triggers: _Triggers | None = None
    client: Annotated[Any, Meta(extra_json_schema={"type": "null"})] = None
    """Only null: it belongs to WebRTC."""
    safety_identifier: str | None = None
    """Returned as given, without effect."""

    REQUIRED: ClassVar = ("model",)


class SessionStart(Struct, frozen=True, tag_field="type", tag="session.start", forbid_unknown_fields=True):
    """Begin the session. Until `session.started`, a client may only send `session.close` after it."""

    session: SessionConfig | None = None
    event_id: EventId | None = None

    REQUIRED: ClassVar = ("session",)


class SessionChanges(Struct, frozen=True, forbid_unknown_fields=True):
    """Changes of a running session."""

    delegation: DelegationConfig | None = None
    triggers: _Triggers | None = None


class SessionUpdate(Struct, frozen=True, tag_field="type", tag="session.update", forbid_unknown_fields=True):
    """Change the delegation settings."""

    session: SessionChanges | None = None
    event_id: EventId | None = None

    REQUIRED: ClassVar = ("session",)


class AudioAppend(
    Struct, frozen=True, tag_field="type", tag="session.input_audio.append", forbid_unknown_fields=True
):
    """Audio of the microphone, sent continuously; no event answers it."""

    audio: LiveAudio | None = None
    event_id: EventId | None = None

    REQUIRED: ClassVar = ("audio",)


class AudioMute(
    Struct, frozen=True, tag_field="type", tag="session.input_audio.mute", forbid_unknown_fields=True
):
    """Mute the input: the model gets silence in place of appended audio."""

    event_id: EventId | None = None


class AudioUnmute(
    Struct, frozen=True, tag_field="type", tag="session.input_audio.unmute", forbid_unknown_fields=True
):
    """Unmute the input."""

    event_id: EventId | None = None


_Content: TypeAlias = Annotated[
    str,
    Meta(
        max_length=MOST_BYTES,
        extra_json_schema={"minLength": 1},
        description="At most 2,000 bytes of UTF-8: the protocol allows 500 tokens, which are about as many.",
    ),
]
_NoDelegation: TypeAlias = Annotated[
    Any, Meta(description="Only null: nothing is delegated here.", extra_json_schema={"type": "null"})
]


class InstructionsAppend(
    Struct, frozen=True, tag_field="type", tag="session.instructions.append", forbid_unknown_fields=True
):
    """Instructions that the model reads before its next unit. Some models cannot read any."""

    content: _Content | None = None
    delegation_id: _NoDelegation = None
    event_id: EventId | None = None

    REQUIRED: ClassVar = ("content",)


class ThinkingAppend(
    Struct, frozen=True, tag_field="type", tag="session.thinking.append", forbid_unknown_fields=True
):
    """A text that the model is to know and not to speak about. It reads the text before its next unit; some
    models cannot read any."""

    content: _Content | None = None
    delegation_id: _NoDelegation = None
    event_id: EventId | None = None

    REQUIRED: ClassVar = ("content",)


class SessionClose(Struct, frozen=True, tag_field="type", tag="session.close", forbid_unknown_fields=True):
    """End the session after the current speech of the model, at the latest after 10 s."""

    event_id: EventId | None = None


class CommentaryAppend(
    Struct, frozen=True, tag_field="type", tag="session.commentary.append", forbid_unknown_fields=True
):
    """A text that the model is to speak about at once, even before the user speaks. Some models cannot read
    any."""

    content: _Content | None = None
    delegation_id: _NoDelegation = None
    event_id: EventId | None = None

    REQUIRED: ClassVar = ("content",)


TextAppend: TypeAlias = InstructionsAppend | ThinkingAppend | CommentaryAppend

ClientEvent: TypeAlias = (
    SessionStart
    | SessionUpdate
    | AudioAppend
    | AudioMute
    | AudioUnmute
    | InstructionsAppend
    | ThinkingAppend
    | CommentaryAppend
    | SessionClose
)

_NO_SERVICE: Final = "no other service works for the model here"

UNSERVED: Final = {
    "session.output_audio.fixture.play": "the client has the audio already",
    "response.item.create": _NO_SERVICE,
    "response.create": _NO_SERVICE,
    "decision.create": _NO_SERVICE,
    "decision.item.create": _NO_SERVICE,
    "decision.item.delete": _NO_SERVICE,
}
"""Events of the protocol that are not served, and the reason for the client."""


# ----------------------------------------------------------------------------------------------- server

Milliseconds: TypeAlias = Annotated[int, Meta(ge=0, description="Position on the timeline of the session.")]


class LiveEvent(ServerEvent, kw_only=True):
    """Common fields of all events but audio."""

    event_id: str
    client_event_id: str | None = None
    """The `event_id` of the client's event that this event answers, if it had one."""


class ResolvedFormat(Struct, omit_defaults=True):
    """The audio format of both directions."""

    type: Literal["audio/pcm", "audio/pcmu", "audio/pcma"]
    rate: int


class ResolvedOutput(Struct, omit_defaults=True):
    """The voice of the model's audio."""

    voice: str | None = None


class ResolvedAudio(Struct, omit_defaults=True):
    """The audio format and the voice."""

    format: ResolvedFormat
    output: ResolvedOutput


class ResolvedDelegation(Struct, omit_defaults=True):
    """The receiver of the tasks that the model delegates."""

    type: Literal["client", "responses"]
    acknowledgement_delay_ms: Count | None = None
    responses: dict[str, Any] | None = None
    """As given."""


class SessionResource(Struct, omit_defaults=True):
    """The current settings of a session."""

    id: str
    expires_at: Count
    """The latest end of the session, in Unix seconds."""
    status: Literal["active"]
    model: str
    instructions: str
    audio: ResolvedAudio
    delegation: ResolvedDelegation | None = None
    safety_identifier: str | None = None


class SessionStarted(LiveEvent, kw_only=True, tag="session.started"):
    """The session has begun, and its output with it."""

    session: SessionResource
    resume: ResumeField = None

    offers_resume: ClassVar = True


class SessionUpdated(LiveEvent, kw_only=True, tag="session.updated"):
    """The settings were changed; `session` has all of them."""

    session: SessionResource


class OutputAudioDelta(ServerEvent, kw_only=True, tag="session.output_audio.delta"):
    """The next audio to play, sent continuously, silence included: 200 ms, or a unit of the model if that is
    shorter."""

    delta: Annotated[bytes, Meta(description="Base64 of raw mono audio in the format of the session.")]


class OutputTranscriptDelta(LiveEvent, kw_only=True, tag="session.output_transcript.delta"):
    """Further words of the model's speech."""

    delta: Annotated[str, Meta(min_length=1)]
    start_ms: Milliseconds
    end_ms: Milliseconds


class InputTranscriptDelta(LiveEvent, kw_only=True, tag="session.input_transcript.delta"):
    """The words of the user, transcribed after a pause; `start_ms` and `end_ms` count the user's audio."""

    delta: Annotated[str, Meta(min_length=1)]
    start_ms: Milliseconds
    end_ms: Milliseconds


class AudioMuted(LiveEvent, kw_only=True, tag="session.input_audio.muted"):
    """The input is muted: the model gets silence."""


class AudioUnmuted(LiveEvent, kw_only=True, tag="session.input_audio.unmuted"):
    """The input is unmuted: the model gets the user's audio."""


class InstructionsAppended(LiveEvent, kw_only=True, tag="session.instructions.appended"):
    """The model has read the instructions."""

    start_ms: Milliseconds
    """The beginning of the unit before which the model read it."""
    end_ms: Milliseconds


class ThinkingAppended(LiveEvent, kw_only=True, tag="session.thinking.appended"):
    """The model has read the text."""

    start_ms: Milliseconds
    """The beginning of the unit before which the model read it."""
    end_ms: Milliseconds


class CommentaryAppended(LiveEvent, kw_only=True, tag="session.commentary.appended"):
    """The model has read the text."""

    start_ms: Milliseconds
    """The beginning of the unit before which the model read it."""
    end_ms: Milliseconds


class LiveUsage(Struct):
    """Usage of the session so far."""

    seconds: Annotated[float, Meta(ge=0)]
    """Seconds of audio that the model has heard."""


class ContextWindow(Struct):
    """Use of the model's context."""

    usage_ratio: Annotated[float, Meta(ge=0)]


class UsageUpdated(LiveEvent, kw_only=True, tag="session.usage.updated"):
    """The usage so far, sent every 5 s of the conversation and at its end."""

    usage: LiveUsage
    context_window: ContextWindow | None = None


class SessionClosed(LiveEvent, kw_only=True, tag="session.closed"):
    """The last event of a session that had begun."""

    reason: Literal["close_requested", "expired", "content", "remote_hangup", "connection_lost"]
    session: SessionResource
    usage: LiveUsage


class Info(LiveEvent, kw_only=True, tag="info"):
    """A notice: `queued` while no slot is free; the others about settings that are replaced or have no
    effect."""

    code: Literal["queued", "voice_replaced", "delegation_unused", "instructions_unused"]
    message: str


class ErrorDetail(Struct, omit_defaults=True):
    """An error."""

    type: Literal["invalid_request_error", "server_error"]
    """The side that caused the error."""
    code: Code
    message: str
    """A text for people."""
    param: str | None = None
    """Path of the field at fault, from the root of the event."""
    client_event_id: str | None = None


class Error(LiveEvent, kw_only=True, tag="error"):
    """An event was refused, a unit was lost, or the session ends. After a refused `session.start` the
    connection closes."""

    error: ErrorDetail

    tells_trouble: ClassVar = True

    @property
    def fault(self) -> Fault:
        return Fault(self.error.code, self.error.code in _SERVERS)


def error(code: Code, message: str, event_id: str, param: str | None, client_event_id: str | None) -> Error:
    """Return an error with the id `event_id`; `client_event_id` is the client's id of the event at fault."""
    side: Literal["invalid_request_error", "server_error"] = (
        "server_error" if code in _SERVERS else "invalid_request_error"
    )
    return Error(
        event_id=event_id,
        client_event_id=client_event_id,
        error=ErrorDetail(side, code, message, param, client_event_id),
    )


SERVER_EVENTS: Final = (
    SessionStarted,
    SessionResumed,
    SessionUpdated,
    OutputAudioDelta,
    OutputTranscriptDelta,
    InputTranscriptDelta,
    AudioMuted,
    AudioUnmuted,
    InstructionsAppended,
    ThinkingAppended,
    CommentaryAppended,
    UsageUpdated,
    SessionClosed,
    Info,
    Error,
)
