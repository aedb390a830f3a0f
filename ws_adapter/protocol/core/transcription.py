"""Results of the transcription of an item beside its conversation."""

from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct


class TranscriptionCode(StrEnum):
    """The reason why an item has no transcript, for programs."""

    BUFFER_FULL = "buffer_full"
    """Too many items of the session wait."""
    QUEUE_FULL = "queue_full"
    """No slot was free until the deadline of the item."""
    SERVICE_UNAVAILABLE = "service_unavailable"
    """No worker transcribes."""
    MODEL_NOT_FOUND = "model_not_found"
    """No worker transcribes with the model that was asked for."""
    NOT_ALLOWED = "not_allowed"
    """The key does not allow the mode `transcription`."""
    CONTEXT_FULL = "context_full"
    """The audio is longer than the model can take."""
    INVALID_AUDIO = "invalid_audio"
    """The model refused the audio."""
    TIMEOUT = "timeout"
    """The transcript was not complete at its deadline."""
    PROCESSING_ERROR = "processing_error"
    """The worker failed."""

    @property
    def is_servers(self) -> bool:
        """Whether the server is at fault, and not the client."""
        return self not in _CLIENTS


_CLIENTS = frozenset(
    {
        TranscriptionCode.BUFFER_FULL,
        TranscriptionCode.MODEL_NOT_FOUND,
        TranscriptionCode.NOT_ALLOWED,
        TranscriptionCode.CONTEXT_FULL,
        TranscriptionCode.INVALID_AUDIO,
    }
)


class InputTranscriptDelta(Struct, frozen=True):
    """Further words, spoken approximately between `begin_s` and `end_s`, in seconds of the item's audio."""

    text: str
    begin_s: float
    end_s: float


class InputTranscriptDone(Struct, frozen=True):
    """The whole transcript of an item, empty for silence; `seconds` is the length of its audio."""

    text: str
    seconds: float


class InputTranscriptFailed(Struct, frozen=True):
    """The reason why there is no transcript."""

    code: TranscriptionCode
    message: str


InputTranscript: TypeAlias = InputTranscriptDelta | InputTranscriptDone | InputTranscriptFailed
"""Deltas, and at last `InputTranscriptDone` or `InputTranscriptFailed`."""
