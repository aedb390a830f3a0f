"""The state of a full-duplex session as plain data, with which another adapter continues.

Times are seconds of the session's clock before the moment at which the state was taken; later times are
negative.
"""

from msgspec import Struct

from ws_adapter.protocol.core.answer import StandaloneText, Unit
from ws_adapter.protocol.core.config import SessionSetup
from ws_adapter.protocol.wire.events import TokenUsage


class SavedCutter(Struct, frozen=True):
    """The state of a `UnitCutter`."""

    carry: bytes
    carries_undecoded: bool
    appends: int
    input_id: str
    last_append_ago: float
    due_ago: float
    clipped: int
    ignored_frames: int
    frames: tuple[bytes, ...]
    max_slice_nums: int | None
    force_next: bool


class SavedTail(Struct, frozen=True):
    """The state of a `SilenceTail`."""

    run_start_ago: float
    run_audio_s: float
    run_appends: int
    last_append_ago: float | None
    last_fed_ago: float | None
    fed: int
    spoke: bool
    over: bool


class SavedAnswers(Struct, frozen=True):
    """The state of `Answers`.

    Units stand in the order of their answers; `numbers` are those at the worker, 0 for one that waits.
    """

    response_id: str | None
    tokens: TokenUsage
    units: tuple[Unit, ...]
    numbers: tuple[int, ...]
    answered: int
    dropped_total: int
    failures: int
    context_tokens: int
    context_limit: int
    has_audio_output: bool


class SavedFlow(Struct, frozen=True):
    """The state of a `UnitFlow`."""

    answers: SavedAnswers
    cutter: SavedCutter
    tail: SavedTail
    texts: tuple[StandaloneText, ...]
    window: int
    unfinalized: dict[int, int]
    last_number: int
    last_cancelled: int


class SavedDeadlines(Struct, frozen=True):
    """The state of `Deadlines`."""

    limit_ago: float | None
    pause_ago: float | None
    idle_ago: float | None
    pause_s: float


class SavedDuplex(Struct, frozen=True):
    """The state of a `DuplexMachine`. `vocabulary` is the result of `Vocabulary.saved`."""

    is_paused: bool
    vocabulary: str
    setup: SessionSetup
    flow: SavedFlow
    deadlines: SavedDeadlines
