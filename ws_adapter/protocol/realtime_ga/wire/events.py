"""Server events of the official SDK (`openai.types.realtime`), as far as voice needs them.

Fields that the protocol always has are written as null if they have no value; other fields are absent then.
"""

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta, Struct

from ws_adapter.protocol.realtime_ga.wire.items import Item
from ws_adapter.protocol.realtime_ga.wire.resources import Conversation, ResponseResource, SessionResource
from ws_adapter.protocol.wire.events import Count, Fault, ResumeField, ServerEvent, SessionResumed


class Code(StrEnum):
    """Error codes, for programs."""

    # Client errors: the event changes nothing.
    INVALID_JSON = "invalid_json"
    INVALID_EVENT = "invalid_event"
    INVALID_VALUE = "invalid_value"
    INVALID_TYPE = "invalid_type"
    MISSING_PARAMETER = "missing_required_parameter"
    UNKNOWN_PARAMETER = "unknown_parameter"
    INVALID_SESSION_TYPE = "invalid_session_type"
    CANNOT_UPDATE_VOICE = "cannot_update_voice"
    COMMIT_EMPTY = "input_audio_buffer_commit_empty"
    BUFFER_FULL = "input_audio_buffer_full"
    DUPLICATE_ITEM = "item_create_duplicate_item_id"
    TRUNCATE_UNKNOWN = "item_truncate_invalid_item_id"
    RETRIEVE_UNKNOWN = "item_retrieve_invalid_item_id"
    DELETE_UNKNOWN = "item_delete_invalid_item_id"
    CONVERSATION_FULL = "conversation_full"
    ACTIVE_RESPONSE = "conversation_already_has_active_response"
    CANCEL_NOT_ACTIVE = "response_cancel_not_active"
    UNSUPPORTED = "unsupported"
    # Client errors that close the connection.
    MISSING_MODEL = "missing_model"
    INVALID_MODEL = "invalid_model"
    RATE_LIMITED = "rate_limit_exceeded"
    INVALID_KEY = "invalid_api_key"
    RESUME_FAILED = "resume_failed"
    INSUFFICIENT_QUOTA = "insufficient_quota"
    BETA_DISABLED = "beta_api_shape_disabled"
    SESSION_EXPIRED = "session_expired"
    # Server errors, and SLOW_CONSUMER, which the client causes.
    OVERLOADED = "server_overloaded"
    INFERENCE_FAILED = "inference_failed"
    SLOW_CONSUMER = "slow_consumer"
    INTERNAL = "internal_error"


ErrorType: TypeAlias = Literal[
    "invalid_request_error", "server_error", "rate_limit_error", "authentication_error"
]

_TYPES: Final[dict[Code, ErrorType]] = {
    Code.RATE_LIMITED: "rate_limit_error",
    Code.INSUFFICIENT_QUOTA: "rate_limit_error",
    Code.OVERLOADED: "server_error",
    Code.INFERENCE_FAILED: "server_error",
    Code.INTERNAL: "server_error",
}


def type_of(code: Code | None) -> ErrorType:
    """Return the type of an error with this code, which tells the side that caused it."""
    return _TYPES.get(code, "invalid_request_error") if code is not None else "invalid_request_error"


# ----------------------------------------------------------------------------------------------- events


class RealtimeEvent(ServerEvent, kw_only=True):
    """Common fields of all events."""

    event_id: str


class SessionCreated(RealtimeEvent, kw_only=True, tag="session.created"):
    """The first event: the session has a slot."""

    session: SessionResource
    resume: ResumeField = None

    offers_resume: ClassVar = True


class SessionUpdated(RealtimeEvent, kw_only=True, tag="session.updated"):
    """The settings were changed; `session` has all of them."""

    session: SessionResource


class ConversationCreated(RealtimeEvent, kw_only=True, tag="conversation.created"):
    """The conversation of the session, sent right after `session.created`."""

    conversation: Conversation


class ItemAdded(RealtimeEvent, kw_only=True, tag="conversation.item.added"):
    """An item was added to the conversation; an item of a response is still empty."""

    previous_item_id: str | None
    item: Item


class ItemDone(RealtimeEvent, kw_only=True, tag="conversation.item.done"):
    """An item is complete, or stays incomplete."""

    previous_item_id: str | None
    item: Item


class ItemRetrieved(RealtimeEvent, kw_only=True, tag="conversation.item.retrieved"):
    """An item with its audio."""

    item: Item


class ItemTruncated(RealtimeEvent, kw_only=True, tag="conversation.item.truncated"):
    """An answer was cut, also for the model."""

    item_id: str
    content_index: Count
    audio_end_ms: Count


class ItemDeleted(RealtimeEvent, kw_only=True, tag="conversation.item.deleted"):
    """An item was deleted."""

    item_id: str


class AudioCommitted(RealtimeEvent, kw_only=True, tag="input_audio_buffer.committed"):
    """Appended audio was committed as this item."""

    previous_item_id: str | None
    item_id: str


class AudioCleared(RealtimeEvent, kw_only=True, tag="input_audio_buffer.cleared"):
    """The appended audio was cleared."""


class ResponseCreated(RealtimeEvent, kw_only=True, tag="response.created"):
    """A response begins."""

    response: ResponseResource


class ResponseDone(RealtimeEvent, kw_only=True, tag="response.done"):
    """A response is over, however it ended."""

    response: ResponseResource


class OutputItemAdded(RealtimeEvent, kw_only=True, tag="response.output_item.added"):
    """An item of a response begins."""

    response_id: str
    output_index: Count
    item: Item


class OutputItemDone(RealtimeEvent, kw_only=True, tag="response.output_item.done"):
    """An item of a response is over."""

    response_id: str
    output_index: Count
    item: Item


class AudioContent(Struct, tag_field="type", tag="audio"):
    """Spoken content."""

    transcript: str


class TextContent(Struct, tag_field="type", tag="text"):
    """Written content."""

    text: str


class _OfPart(RealtimeEvent, kw_only=True):
    """The place in a response."""

    response_id: str
    item_id: str
    output_index: Count
    content_index: Count


class ContentPartAdded(_OfPart, kw_only=True, tag="response.content_part.added"):
    """A part of an item begins."""

    part: AudioContent | TextContent


class ContentPartDone(_OfPart, kw_only=True, tag="response.content_part.done"):
    """A part of an item is over."""

    part: AudioContent | TextContent


class AudioDelta(_OfPart, kw_only=True, tag="response.output_audio.delta"):
    """The next audio of an answer."""

    delta: Annotated[bytes, Meta(description="Base64 of raw mono audio in the output format.")]


class AudioDone(_OfPart, kw_only=True, tag="response.output_audio.done"):
    """No more audio of the answer follows."""


class TranscriptDelta(_OfPart, kw_only=True, tag="response.output_audio_transcript.delta"):
    """Further words of a spoken answer."""

    delta: str


class TranscriptDone(_OfPart, kw_only=True, tag="response.output_audio_transcript.done"):
    """All words of a spoken answer."""

    transcript: str


class TextDelta(_OfPart, kw_only=True, tag="response.output_text.delta"):
    """Further text of a written answer."""

    delta: str


class TextDone(_OfPart, kw_only=True, tag="response.output_text.done"):
    """The whole text of a written answer."""

    text: str


class _OfCall(RealtimeEvent, kw_only=True):
    """The place in a response."""

    response_id: str
    item_id: str
    output_index: Count
    call_id: str


class ArgumentsDelta(_OfCall, kw_only=True, tag="response.function_call_arguments.delta"):
    """A further part of the arguments of a tool call."""

    delta: str


class ArgumentsDone(_OfCall, kw_only=True, tag="response.function_call_arguments.done"):
    """A complete tool call: `arguments` is a JSON object."""

    arguments: str
    name: str


class SpeechStarted(RealtimeEvent, kw_only=True, tag="input_audio_buffer.speech_started"):
    """The user has begun to speak: the client should stop playback."""

    audio_start_ms: Count
    """Position in all audio ever appended, where the padding before the speech begins."""
    item_id: str
    """The id of the item that the speech will become."""


class SpeechStopped(RealtimeEvent, kw_only=True, tag="input_audio_buffer.speech_stopped"):
    """The user has stopped speaking."""

    audio_end_ms: Count
    item_id: str


class TimeoutTriggered(RealtimeEvent, kw_only=True, tag="input_audio_buffer.timeout_triggered"):
    """The user has been silent for so long that the model speaks again."""

    audio_start_ms: Count
    audio_end_ms: Count
    item_id: str


class _OfTranscript(RealtimeEvent, kw_only=True):
    """The item of the transcribed words."""

    item_id: str
    content_index: Count
    """Always 0."""


class TranscriptionDelta(
    _OfTranscript, kw_only=True, tag="conversation.item.input_audio_transcription.delta"
):
    """Further words of the user."""

    delta: str


class Duration(Struct, tag_field="type", tag="duration"):
    """The length of the transcribed audio."""

    seconds: float


class TranscriptionCompleted(
    _OfTranscript, kw_only=True, tag="conversation.item.input_audio_transcription.completed"
):
    """All words of the user, empty for silence."""

    transcript: str
    usage: Duration


class Failure(Struct, kw_only=True):
    """The reason why there is no transcript."""

    type: str
    code: str
    message: str
    param: Annotated[Any, Meta(extra_json_schema={"type": "null"})] = None


class TranscriptionFailed(
    _OfTranscript, kw_only=True, tag="conversation.item.input_audio_transcription.failed"
):
    """The audio of one item has no transcript; later items may have one."""

    error: Failure


class ErrorBody(Struct, kw_only=True):
    """An error."""

    type: ErrorType
    code: Code | None
    message: str
    """A text for people: the field, the expected value and the received one."""
    param: str | None
    """Path of the field at fault, from the root of the event."""
    event_id: str | None
    """The `event_id` of the event at fault, if that had one."""


class Error(RealtimeEvent, kw_only=True, tag="error"):
    """An event was refused, a response failed, or the connection closes."""

    error: ErrorBody

    tells_trouble: ClassVar = True

    @property
    def fault(self) -> Fault:
        return Fault(self.error.code or "refused", self.error.type == "server_error")


def error(
    own_id: str, code: Code | None, message: str, param: str | None = None, event_id: str | None = None
) -> Error:
    """Return an error with `own_id`; `event_id` is the client's id of the event at fault."""
    body = ErrorBody(type=type_of(code), code=code, message=message, param=param, event_id=event_id)
    return Error(event_id=own_id, error=body)


SERVER_EVENTS: Final = (
    SessionCreated,
    SessionResumed,
    SessionUpdated,
    ConversationCreated,
    ItemAdded,
    ItemDone,
    ItemRetrieved,
    ItemTruncated,
    ItemDeleted,
    AudioCommitted,
    AudioCleared,
    ResponseCreated,
    ResponseDone,
    OutputItemAdded,
    OutputItemDone,
    ContentPartAdded,
    ContentPartDone,
    AudioDelta,
    AudioDone,
    TranscriptDelta,
    TranscriptDone,
    TextDelta,
    TextDone,
    ArgumentsDelta,
    ArgumentsDone,
    SpeechStarted,
    SpeechStopped,
    TimeoutTriggered,
    TranscriptionDelta,
    TranscriptionCompleted,
    TranscriptionFailed,
    Error,
)
"""Everything that the server may send in this dialect."""
