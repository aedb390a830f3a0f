"""The state of the parts of a session.

Times are ages in seconds at the moment of saving; a time in the future is negative.
"""

from msgspec import Struct

from ws_adapter.protocol.core.actions import Rewind
from ws_adapter.protocol.core.config import ChatSetup, SessionSetup
from ws_adapter.protocol.core.signals import CallDelta, Ready, TextPurpose, UnitDone
from ws_adapter.protocol.core.speech import SavedEdges
from ws_adapter.protocol.core.transcriptions import SavedTranscription
from ws_adapter.protocol.duplex.saved import SavedFlow
from ws_adapter.protocol.live.sound import SavedInputConverter
from ws_adapter.protocol.realtime_ga.saved.items import SavedConversation, SavedResponse
from ws_adapter.protocol.realtime_ga.wire.fields import ServerVad, SessionFields
from ws_adapter.protocol.wire.events import TokenUsage


class SavedAbilities(Struct, frozen=True):
    """The state of the `Abilities` of a session's model."""

    speaks: bool
    hears: bool
    calls_tools: bool
    takes_turns: bool
    chats: bool
    unit_ms: int
    yields: bool
    reads_prompts: bool


class SavedSettings(Struct, frozen=True):
    """The state of `Settings`, which is serialised once."""

    model: str
    abilities: SavedAbilities
    fields: SessionFields
    unmet: frozenset[str]


class SavedPiece(Struct, frozen=True):
    """The state of a piece of an answer that waits for the client; `audio` is the number of its sound."""

    unit: int
    text: str
    audio: int
    call: CallDelta | None


class SavedSlot(Struct, frozen=True):
    """The state of a `WorkerSlot` whose worker can be replaced by another."""

    is_running: bool
    ready: Ready | None
    setup: ChatSetup | None
    """The setup; None for that of the model's own turns."""
    unit: int


class SavedAnswers(Struct, frozen=True):
    """The state of `Answers`. Responses are named by their places among those of the session."""

    slot: SavedSlot | None
    active: int | None
    running: int | None
    waiting: tuple[int, ...]
    unsent: tuple[SavedPiece, ...]
    done: UnitDone | None
    """The end of the answer, which is sent after the waiting pieces."""
    failures: int
    has_spoken: bool
    plays_until_ago: float


class SavedReplay(Struct, frozen=True):
    """The state of a `Replay`."""

    is_kept: bool
    heard: tuple[int, ...]


class SavedNative(Struct, frozen=True):
    """The state of a `Native`; `active` is the place of its response."""

    setup: SessionSetup | None
    active: int | None
    has_begun: bool
    has_spoken: bool
    is_away: bool
    most_history: int
    is_stale: bool
    purposes: frozenset[TextPurpose]
    replay: SavedReplay
    tokens: TokenUsage
    item_id: str
    flow: SavedFlow
    units_answered: int
    spoken: tuple[tuple[str, tuple[tuple[int, int], ...]], ...]
    finalized: int
    rewind: Rewind | None


class SavedBuffer(Struct, frozen=True):
    """The state of an `InputBuffer`."""

    begin: int
    ear: SavedInputConverter
    held: tuple[int, ...]
    bytes: float
    appended: int


class SavedListening(Struct, frozen=True):
    """The state of a `Listening`."""

    vad: ServerVad
    is_speech: bool
    edges: SavedEdges
    since: int
    heard: int


class SavedDialogue(Struct, frozen=True):
    """The state of a `Dialogue`. `settings` is the number of serialised `SavedSettings`."""

    settings: int
    expires_at: int
    buffer: SavedBuffer
    conversation: SavedConversation
    idle_ago: float | None
    has_input: bool
    native: SavedNative | None
    listening: SavedListening | None
    item_id: str
    has_prompted: bool
    has_transcribed: bool
    awaited: tuple[SavedTranscription, ...]
    owes_answer: bool


class SavedRealtimeGa(Struct, frozen=True):
    """The state of a `RealtimeGa`. Each response appears once, with all references to it by place."""

    ids: str
    told: int
    dialogue: SavedDialogue
    answers: SavedAnswers
    responses: tuple[SavedResponse, ...]
    limit_ago: float | None
    unused_ago: float | None
