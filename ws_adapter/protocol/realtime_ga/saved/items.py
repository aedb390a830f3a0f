"""Items and responses of a session."""

from msgspec import Struct

from ws_adapter.protocol.core.config import ChatSetup
from ws_adapter.protocol.core.saved_turn import SavedPart, SavedTurn
from ws_adapter.protocol.live.resampler import SavedResampler
from ws_adapter.protocol.live.sound import Format
from ws_adapter.protocol.realtime_ga.wire.items import Item
from ws_adapter.protocol.realtime_ga.wire.resources import Modality
from ws_adapter.protocol.wire.events import TokenUsage


class SavedTranscript(Struct, frozen=True):
    """Hold a `Transcript`."""

    bytes_per_s: int
    pieces: tuple[tuple[int, str], ...]
    size: int
    heard_bytes: int | None


class SavedItem(Struct, frozen=True):
    """Hold what an `Entry` has in words, which is written once unless it changes.

    The parts of the sound of an answer that a client may ask for are not kept.
    """

    item: Item
    parts: tuple[SavedPart, ...]
    transcript: SavedTranscript | None
    is_told: bool


class SavedEntry(Struct, frozen=True):
    """Hold an `Entry`: the number of a serialised `SavedItem`."""

    item: int


class SavedConversation(Struct, frozen=True):
    """Hold a `Conversation`."""

    id: str
    ratio: float | None
    entries: tuple[SavedEntry, ...]
    dropped: tuple[str, ...]


class SavedResponse(Struct, frozen=True):
    """Hold a `Response` that is not over. `open` is the place of its open item in its output."""

    id: str
    turn: SavedTurn | None
    """None where the worker has it."""
    setup: ChatSetup
    modality: Modality
    format: Format
    voice: str
    max_output_tokens: int | str
    is_beside: bool
    metadata: dict[str, str] | None
    has_spoken: bool
    mouth: SavedResampler | None
    output: tuple[SavedEntry, ...]
    open: int | None
    tokens: TokenUsage
