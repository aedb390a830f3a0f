"""A unit of input in full duplex, and its outcome."""

from enum import Enum, auto

from msgspec import Struct, field

from ws_adapter.protocol.core.signals import NO_TIMINGS, Piece, Prefilled, TextPurpose, Timings, UnitDone
from ws_adapter.protocol.wire.errors import ErrorCode
from ws_adapter.protocol.wire.events import NO_TOKENS, TokenUsage


class StandaloneText(Struct, frozen=True):
    """A text that the model reads before the sound of a unit."""

    purpose: TextPurpose
    text: str
    event_id: str | None = None
    """The client's id of the event that carried it."""

    @property
    def size(self) -> int:
        """The length in bytes of UTF-8, an upper bound for the number of tokens."""
        return len(self.text.encode())


class Unit(Struct, eq=False):
    """One unit of input, until it is answered, and the worker's output for it so far.

    `append` is the number of the append that completed the unit, `ready_at` the time of completion in
    seconds of the session's clock. `audio` is a whole unit of float32 little-endian at 16 kHz. `frames` are
    encoded pictures, the oldest first; the model may cut each into at most `max_slice_nums` slices.
    """

    audio: bytes
    input_id: str
    append: int
    ready_at: float
    force_listen: bool = False
    padded_samples: int = 0
    clipped_samples: int = 0
    ignored_frames: int = 0
    injected_silence: bool = False
    frames: tuple[bytes, ...] = ()
    max_slice_nums: int | None = None
    texts: tuple[StandaloneText, ...] = ()
    is_dropped: bool = False
    """Whether the unit was dropped: it cannot run, or came too late."""
    is_muted: bool = False
    """Whether its output is not sent."""
    speaks: bool = False
    said: list[Piece] = field(default_factory=list)
    prefilled: Prefilled | None = None
    done: UnitDone | None = None


class Outcome(Enum):
    """The outcome of a unit."""

    LISTEN = auto()
    SPEECH = auto()
    FAILED = auto()
    DROPPED = auto()


class Answer(Struct, frozen=True):
    """The answer to one unit.

    `index` counts units from 0. `response_id` is the response that speech belongs to, or that a listen answer
    closes. `audio` is float32 at 24 kHz. `context_tokens` is the length of the context after the unit, or
    after the last unit that ran if this one was dropped; `context_limit` 0 means unknown.
    """

    outcome: Outcome
    index: int
    unit: Unit
    response_id: str | None
    context_tokens: int
    context_limit: int
    dropped_total: int
    total: TokenUsage
    """Tokens of the session so far."""
    own: TokenUsage = NO_TOKENS
    text: str = ""
    audio: bytes = b""
    ends_turn: bool = False
    has_audio_output: bool = True
    timings: Timings = NO_TIMINGS
    vision_slices: int = 0
    failure: tuple[ErrorCode, str] | None = None
    is_continued: bool = False
    """Whether a part of the unit was sent already, with its figures."""
