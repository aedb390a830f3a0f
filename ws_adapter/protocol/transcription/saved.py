"""The state of a transcription as plain data, with which another adapter goes on.

Times are seconds of the session's clock before the moment at which the state was taken.
"""

from msgspec import Struct

from ws_adapter.protocol.core.blobs import SavedBytes


class SavedUtterance(Struct, frozen=True):
    """Hold an `Utterance`."""

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
    """Hold `Utterances`."""

    current: SavedUtterance | None
    ahead: tuple[SavedUtterance, ...]
    model: str | None
    kept: SavedBytes
    is_skipping: bool


class SavedSlot(Struct, frozen=True):
    """Hold a `TranscriptionSlot` whose worker another one takes the place of."""

    granted_ago: float
    prompt_tokens: int
    look_ago: float | None
    last_unit: int
    at_worker: tuple[int, ...]
    model: str
    window: int


class SavedTranscription(Struct, frozen=True):
    """Hold a `Transcription`. `dialect` is the serialised state of a protocol on top of it, or empty."""

    created: int
    utterances: SavedUtterances
    heard_ago: float
    slot: SavedSlot | None
    dialect: bytes
