"""Signals of a worker about a session, as plain data. Times in milliseconds, audio in bytes of float32 at
24 kHz."""

from enum import Enum, StrEnum, auto
from typing import Final, TypeAlias

from msgspec import Struct

from antiphon.contract import Reason
from ws_adapter.protocol.wire.events import NO_TOKENS, InputTokenDetails, OutputTokenDetails, TokenUsage

OUTPUT_RATE_HZ: Final = 24_000


class UnitEnd(StrEnum):
    """Why a unit is over; the word is a label and an attribute."""

    LISTEN = auto()
    CHUNK = auto()
    TURN = auto()
    CONTEXT_FULL = auto()
    CANCELLED = auto()
    FAILED = auto()


class Finish(Enum):
    """Why the model said no more in a unit."""

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

    `speaks`: the model has a voice; `generate_audio`: it is to use it.
    """

    prompt_tokens: int
    context_limit: int
    max_units_in_flight: int
    generate_audio: bool
    ignored_fields: tuple[str, ...] = ()
    speaks: bool = True
    text_purposes: frozenset[TextPurpose] = frozenset()
    """Of texts that the model reads while it listens."""
    max_slices: int | None = None
    """Most slices that it cuts a picture into: 0 if it sees none, 1 if it cuts none; None if not known."""

    @property
    def cuts_pictures(self) -> bool:
        """Whether the model may cut a picture into slices."""
        return self.max_slices is None or self.max_slices > 1

    @property
    def tokens(self) -> TokenUsage:
        """Tokens of the settings: system prompt and voice."""
        count = self.prompt_tokens
        return TokenUsage(count, count, 0, InputTokenDetails(count, 0, 0, 0), OutputTokenDetails(0, 0))


class Prefilled(Struct, frozen=True):
    """The input of a unit is in the context: its `tokens`, and `vision_slices` of its pictures among it."""

    unit: int
    timings: Timings
    vision_slices: int = 0
    tokens: TokenUsage = NO_TOKENS
    ignored_fields: tuple[str, ...] = ()
    """Paths in `antiphon.v1.TurnInput` of settings that have no effect."""


class CallDelta(Struct, frozen=True):
    """A piece of a call to a tool. Those of a call come together: the first has `id` and `name`, the last
    is `complete`; a call without one must not be carried out.
    """

    index: int
    """Which call of the unit, from 0."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    """To be appended: together a JSON object."""
    complete: bool = False


class Piece(Struct, frozen=True):
    """A part of what a unit says, in the order `thinking`, `text` and `audio`, `call`."""

    unit: int
    text: str
    audio: bytes
    thinking: str = ""
    """Never spoken, and no part of the answer."""
    call: CallDelta | None = None


class UnitDone(Struct, frozen=True):
    """The last word about what a unit says; `failure` goes with FAILED, `finish` where tokens were drawn."""

    unit: int
    end: UnitEnd
    context_tokens: int
    tokens: TokenUsage = NO_TOKENS
    timings: Timings = NO_TIMINGS
    failure: Reason | None = None
    field: str = ""
    """Path in the input of what failed it, if it was that."""
    problem: str = ""
    """What was wrong with it, to follow its name; for videos alone, which are judged by the worker."""
    finish: Finish | None = None


class Finalized(Struct, frozen=True):
    """A unit is closed: there is room for another one at the worker."""

    unit: int


class Rewound(Struct, frozen=True):
    """Restore the context to that before the words; a unit that was heard already is heard again.

    `units` had something that was taken back.
    """

    unit: int
    context_tokens: int
    units: int = 0
    failure: Reason | None = None


class Moved(Struct, frozen=True):
    """Another worker has taken the session over `pause_s` seconds after the last one was lost.

    It knows all that was answered, and hears the units without an answer from their beginning: nothing that
    was said of those counts.
    """

    pause_s: float


class GoingAway(Struct, frozen=True):
    """The worker will end the session in `time_left_s` seconds."""

    time_left_s: float


class Failed(Struct, frozen=True):
    """The session at the worker is over, and not because anybody here asked for it."""

    reason: Reason


UnitSignal: TypeAlias = Prefilled | Piece | UnitDone | Finalized | Rewound | Moved
UNIT_SIGNALS: Final = (Prefilled, Piece, UnitDone, Finalized, Rewound)
"""What a worker says of units, and not of the session as a whole."""

Signal: TypeAlias = Ready | UnitSignal | GoingAway | Failed
