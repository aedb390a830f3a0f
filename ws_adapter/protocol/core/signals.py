"""Signals of a worker about a session, as plain data. Times in milliseconds, audio in bytes of float32 at
24 kHz."""

from enum import Enum, StrEnum, auto
from typing import Final, TypeAlias

from msgspec import Struct

from antiphon.contract import Reason
from ws_adapter.protocol.wire.events import NO_TOKENS, InputTokenDetails, OutputTokenDetails, TokenUsage

OUTPUT_RATE_HZ: Final = 24_000


class UnitEnd(StrEnum):
    """The reason why a unit is over; the value is a label and an attribute."""

    LISTEN = auto()
    CHUNK = auto()
    TURN = auto()
    CONTEXT_FULL = auto()
    CANCELLED = auto()
    FAILED = auto()


class Finish(Enum):
    """The reason why the model's output of a unit ended."""

    EOS = auto()
    STOP = auto()
    LENGTH = auto()


class Timings(Struct, frozen=True):
    """Milliseconds that a unit spent in each phase on the worker; None for a phase that did not run."""

    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    speech: float | None = None
    vocoder: float | None = None
    total: float | None = None


NO_TIMINGS: Final = Timings()


class TextPurpose(StrEnum):
    """The purpose of a text for a model that is listening."""

    INSTRUCTIONS = auto()
    THINKING = auto()
    COMMENTARY = auto()
    TOOL_RESULT = auto()


class Ready(Struct, frozen=True):
    """The session takes units. `ignored_fields` are paths in `antiphon.v1.SessionConfig`.

    `speaks`: the model has a voice; `generate_audio`: the voice is used.
    """

    prompt_tokens: int
    context_limit: int
    max_units_in_flight: int
    generate_audio: bool
    ignored_fields: tuple[str, ...] = ()
    speaks: bool = True
    text_purposes: frozenset[TextPurpose] = frozenset()
    """The purposes of texts that the model reads while it listens."""
    max_slices: int | None = None
    """The most slices of a picture: 0 for a model without vision, 1 if it cuts none; None if not known."""

    @property
    def cuts_pictures(self) -> bool:
        """Whether the model may cut a picture into slices."""
        return self.max_slices is None or self.max_slices > 1

    @property
    def tokens(self) -> TokenUsage:
        """The tokens of the settings: system prompt and voice."""
        count = self.prompt_tokens
        return TokenUsage(count, count, 0, InputTokenDetails(count, 0, 0, 0), OutputTokenDetails(0, 0))


class Prefilled(Struct, frozen=True):
    """The input of a unit is in the context: its `tokens`, and the `vision_slices` of its pictures."""

    unit: int
    timings: Timings
    vision_slices: int = 0
    tokens: TokenUsage = NO_TOKENS
    ignored_fields: tuple[str, ...] = ()
    """Paths in `antiphon.v1.TurnInput` of settings that have no effect."""


class CallDelta(Struct, frozen=True):
    """A piece of a tool call. The pieces of a call are consecutive: the first has `id` and `name`, the last
    is `complete`. A call without a `complete` piece must not be carried out."""

    index: int
    """The index of the call in the unit, from 0."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    """The next part of the arguments; all parts together are a JSON object."""
    complete: bool = False


class Piece(Struct, frozen=True):
    """A part of a unit's output, in the order `thinking`, `text` and `audio`, `call`."""

    unit: int
    text: str
    audio: bytes
    thinking: str = ""
    """Text of the model's reasoning, which is never spoken and no part of the answer."""
    call: CallDelta | None = None


class UnitDone(Struct, frozen=True):
    """The end of a unit's output; `failure` is set with FAILED, `finish` if tokens were sampled."""

    unit: int
    end: UnitEnd
    context_tokens: int
    tokens: TokenUsage = NO_TOKENS
    timings: Timings = NO_TIMINGS
    failure: Reason | None = None
    field: str = ""
    """The path of the input field that failed the unit, if one did."""
    problem: str = ""
    """The fault of that field, as error text after its name; only for videos, which the worker checks."""
    finish: Finish | None = None


class Finalized(Struct, frozen=True):
    """A unit is closed: the worker has room for another one."""

    unit: int


class Rewound(Struct, frozen=True):
    """The outcome of `Rewind`. `unit` is the rewound unit, `context_tokens` the length of the context now.

    `units` is the number of units whose output was removed, in part or whole. With a `failure` nothing has
    changed.
    """

    unit: int
    context_tokens: int
    units: int = 0
    failure: Reason | None = None


class Moved(Struct, frozen=True):
    """Another worker has taken over the session, `pause_s` seconds after the previous one was lost.

    The new worker has the context of all answered units and runs the unanswered ones again from their
    beginning: earlier output of those is void.
    """

    pause_s: float


class GoingAway(Struct, frozen=True):
    """The worker will end the session in `time_left_s` seconds."""

    time_left_s: float


class Failed(Struct, frozen=True):
    """The session at the worker has ended without a request of the adapter."""

    reason: Reason


UnitSignal: TypeAlias = Prefilled | Piece | UnitDone | Finalized | Rewound | Moved
UNIT_SIGNALS: Final = (Prefilled, Piece, UnitDone, Finalized, Rewound)
"""Signals about units, not about the session as a whole."""

Signal: TypeAlias = Ready | UnitSignal | GoingAway | Failed
