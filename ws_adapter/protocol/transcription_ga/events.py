"""Events of a Realtime session of `type: transcription`, beside those that it has in common with the others.

The names and forms are those of the official SDK (`openai.types.realtime`).
"""

from typing import ClassVar, Final, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from ws_adapter.protocol.realtime_ga.wire.client_events import (
    AudioAppend,
    AudioClear,
    AudioCommit,
    EventId,
    ResponseCreate,
)
from ws_adapter.protocol.realtime_ga.wire.events import (
    AudioCleared,
    AudioCommitted,
    Error,
    ItemAdded,
    ItemDone,
    RealtimeEvent,
    SpeechStarted,
    SpeechStopped,
    TranscriptionCompleted,
    TranscriptionDelta,
    TranscriptionFailed,
)
from ws_adapter.protocol.realtime_ga.wire.fields import InputFields
from ws_adapter.protocol.realtime_ga.wire.resources import AsGiven, Format
from ws_adapter.protocol.wire.events import Count, ResumeField, SessionResumed

# ----------------------------------------------------------------------------------------------- client


class AudioFields(Struct, frozen=True, forbid_unknown_fields=True):
    """Sound of the client's."""

    input: InputFields | None = None


class SessionFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a session."""

    type: Literal["realtime", "transcription"] | None = None
    """Only transcription: a session stays what it is."""
    audio: AudioFields | None = None
    include: list[Literal["item.input_audio_transcription.logprobs"]] | UnsetType | None = UNSET
    """Accepted without effect: there are no log probabilities."""

    REQUIRED: ClassVar = ("type",)


class SessionUpdate(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="session.update", forbid_unknown_fields=True
):
    """Change what is given, all of it or nothing."""

    event_id: EventId | None = None
    session: SessionFields | None = None

    REQUIRED: ClassVar = ("session",)


ClientEvent: TypeAlias = SessionUpdate | AudioAppend | AudioCommit | AudioClear | ResponseCreate
"""`response.create` is refused: there is nobody to answer."""


# ----------------------------------------------------------------------------------------------- server


class VadResource(Struct, kw_only=True, tag_field="type", tag="server_vad"):
    """The server hears when the user begins and ends."""

    threshold: float
    prefix_padding_ms: Count
    silence_duration_ms: Count


class InputResource(Struct, kw_only=True):
    """The format of the input."""

    format: Format
    transcription: AsGiven | None
    noise_reduction: AsGiven | None
    turn_detection: VadResource | None


class AudioResource(Struct, kw_only=True):
    """Sound of the client's."""

    input: InputResource


class SessionResource(Struct, kw_only=True):
    """A session as it is."""

    type: Literal["transcription"] = "transcription"
    object: Literal["realtime.transcription_session"] = "realtime.transcription_session"
    id: str
    expires_at: Count
    """Unix seconds of its end."""
    audio: AudioResource
    include: list[str] | None
    unsupported_fields: list[str] | UnsetType = UNSET
    """Paths in `session` of what was accepted but is not honoured; absent if there is nothing."""


class SessionCreated(RealtimeEvent, kw_only=True, tag="session.created"):
    """The first event, sent before anything is read, in the forms of both protocols of this address."""

    id: str
    created: Count
    """Unix seconds."""
    session: SessionResource
    resume: ResumeField = None

    offers_resume: ClassVar = True


class SessionUpdated(RealtimeEvent, kw_only=True, tag="session.updated"):
    """A change is made; the session is this."""

    session: SessionResource


SERVER_EVENTS: Final = (
    SessionCreated,
    SessionResumed,
    SessionUpdated,
    AudioCommitted,
    AudioCleared,
    SpeechStarted,
    SpeechStopped,
    ItemAdded,
    ItemDone,
    TranscriptionDelta,
    TranscriptionCompleted,
    TranscriptionFailed,
    Error,
)
"""Everything that the server may send in this dialect."""
