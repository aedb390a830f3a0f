"""The state of a chat as plain data, with which another adapter continues.

Times are seconds of the session's clock before the moment at which the state was taken.
"""

from msgspec import Struct

from ws_adapter.protocol.core.saved_turn import SavedTurn
from ws_adapter.protocol.core.signals import Prefilled, Ready
from ws_adapter.protocol.wire.events import TokenUsage


class SavedCalls(Struct, frozen=True):
    """The state of `Calls`."""

    names: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]
    complete: frozenset[int]


class SavedReply(Struct, frozen=True):
    """The state of a `Reply`. `audio` are the numbers of its pieces."""

    streaming: bool
    asked_ago: float
    prefilled: Prefilled | None
    text: str
    thinking: str
    audio: tuple[int, ...]
    calls: SavedCalls


class SavedChat(Struct, frozen=True):
    """The state of a `Chat` whose turn the model has read. `is_done`: its answer is complete."""

    is_done: bool
    is_lost: bool
    """Whether no worker can continue the answer."""
    reply: SavedReply
    unsupported: tuple[str, ...]


class SavedRequest(Struct, frozen=True):
    """The state of a `Request`; `llm_reference` and `speech_reference` are the numbers of its voice audio."""

    turn: SavedTurn
    streaming: bool
    has_voice: bool
    llm_reference: int | None
    speech_reference: int | None
    voice_id: str | None
    asks_for_speech: str
    unsupported: tuple[str, ...]
    clipped_samples: int
    has_own_slices: bool


class SavedChatTurn(Struct, frozen=True):
    """The state of a `ChatTurn`."""

    request: SavedRequest
    input_id: str
    response_id: str
    reply: SavedReply
    context_limit: int
    unsupported: tuple[str, ...]


class SavedChatSlot(Struct, frozen=True):
    """The state of a `ChatSlot` whose worker can be replaced by another."""

    is_running: bool
    ready: Ready | None
    has_turns_voice: bool


class SavedRealtimeChat(Struct, frozen=True):
    """The state of a `RealtimeChat`. `settings` is the number of its serialised settings."""

    settings: int
    slot: SavedChatSlot | None
    turns: tuple[SavedChatTurn, ...]
    failures: int
    tokens: TokenUsage
    idle_ago: float | None
    unused_ago: float | None
