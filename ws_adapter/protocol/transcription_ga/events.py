"""Events of a Realtime session of `type: transcription` that other sessions do not have.

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
    """The audio settings."""

    input: InputFields | None = None


class SessionFields(Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a session."""

    type: Literal["realtime", "transcription"] | None = None
    """Only transcription: the type of a session cannot change."""
    audio: AudioFields | None = None
    include: list[Literal["item.input_audio_transcription.logprobs"]] | UnsetType | None = UNSET
    """Accepted without effect: no log probabilities are sent."""

    REQUIRED: ClassVar = ("type",)


class SessionUpdate(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="session.update", forbid_unknown_fields=True
):
    """Change the given settings, all of them or none."""

    event_id: EventId | None = None
    session: SessionFields | None = None

    REQUIRED: ClassVar = ("session",)


ClientEvent: TypeAlias = SessionUpdate | AudioAppend | AudioCommit | AudioClear | ResponseCreate
"""`response.create` is refused: these sessions have no responses."""


# ----------------------------------------------------------------------------------------------- server


class VadResource(Struct, kw_only=True, tag_field="type", tag="server_vad"):
    """Turn detection by the server, which detects the start and end of speech."""

    threshold: float
    prefix_padding_ms: Count
    silence_duration_ms: Count


class InputResource(Struct, kw_only=True):
    """The settings of the input audio."""

    format: Format
    transcription: AsGiven | None
    noise_reduction: AsGiven | None
    turn_detection: VadResource | None


class AudioResource(Struct, kw_only=True):
    """The audio settings."""

    input: InputResource


class SessionResource(Struct, kw_only=True):
    """The current settings of a session."""

    type: Literal["transcription"] = "transcription"
    object: Literal["realtime.transcription_session"] = "realtime.transcription_session"
    id: str
    expires_at: Count
    """The latest end of the session, in Unix seconds."""
    audio: AudioResource
    include: list[str] | None
    unsupported_fields: list[str] | UnsetType = UNSET
    """Paths in `session` of accepted fields without effect; absent if there are none."""


class SessionCreated(RealtimeEvent, kw_only=True, tag="session.created"):
    """The first event, sent before the server reads any event. It has the fields of both protocols of this
    path."""

    id: str
    created: Count
    """Unix seconds."""
    session: SessionResource
    resume: ResumeField = None

    offers_resume: ClassVar = True


class SessionUpdated(RealtimeEvent, kw_only=True, tag="session.updated"):
    """The settings were changed; `session` has all of them."""

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
