"""The state of a transcription session as plain data, from which another adapter continues it.

Times are ages in seconds at the moment of saving; a time in the future is negative.
"""

from msgspec import Struct

from ws_adapter.protocol.core.blobs import SavedBytes


class SavedUtterance(Struct, frozen=True):
    """The state of an `Utterance`."""

    model: str
    audio: SavedBytes
    waiting_ago: float
    is_ended: bool
    is_timed_out: bool
    first_unit: int
    last_unit: int
    sampled_tokens: int
    said: SavedBytes


class SavedUtterances(Struct, frozen=True):
    """The state of `Utterances`."""

    current: SavedUtterance | None
    ahead: tuple[SavedUtterance, ...]
    model: str | None
    kept: SavedBytes
    is_skipping: bool


class SavedSlot(Struct, frozen=True):
    """The state of a `TranscriptionSlot` whose worker can be replaced by another."""

    granted_ago: float
    prompt_tokens: int
    look_ago: float | None
    last_unit: int
    at_worker: tuple[int, ...]
    model: str
    window: int


class SavedTranscription(Struct, frozen=True):
    """The state of a `Transcription`. `dialect` is the serialised state of a derived protocol, or empty."""

    created: int
    utterances: SavedUtterances
    heard_ago: float
    slot: SavedSlot | None
    dialect: bytes
