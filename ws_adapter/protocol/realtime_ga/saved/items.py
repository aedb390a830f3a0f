"""The state of the items and responses of a session."""

from msgspec import Struct

from ws_adapter.protocol.core.config import ChatSetup
from ws_adapter.protocol.core.saved_turn import SavedPart, SavedTurn
from ws_adapter.protocol.live.resampler import SavedResampler
from ws_adapter.protocol.live.sound import Format
from ws_adapter.protocol.realtime_ga.wire.items import Item
from ws_adapter.protocol.realtime_ga.wire.resources import Modality
from ws_adapter.protocol.wire.events import TokenUsage


class SavedTranscript(Struct, frozen=True):
    """The state of a `Transcript`."""

    bytes_per_s: int
    pieces: tuple[tuple[int, str], ...]
    size: int
    heard_bytes: int | None


class SavedItem(Struct, frozen=True):
    """The state of an `Entry`, which is serialised again only if it changes.

    The audio of an answer, which a client could retrieve, is not saved.
    """

    item: Item
    parts: tuple[SavedPart, ...]
    transcript: SavedTranscript | None
    is_told: bool


class SavedEntry(Struct, frozen=True):
    """The number of the serialised `SavedItem` of an `Entry`."""

    item: int


class SavedConversation(Struct, frozen=True):
    """The state of a `Conversation`."""

    id: str
    ratio: float | None
    entries: tuple[SavedEntry, ...]
    dropped: tuple[str, ...]


class SavedResponse(Struct, frozen=True):
    """The state of a `Response` that is not over. `open` is the place of its open item in its output."""

    id: str
    turn: SavedTurn | None
    """None if the worker has it."""
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
