"""What a worker says about a session, as plain data. Times in milliseconds, audio in bytes of float32 at 24
kHz.
"""

from dataclasses import dataclass, fields
from enum import Enum, auto
from typing import TypeAlias

from antiphon.semconv import Reason


class UnitEnd(Enum):
    """Why a unit is over."""

    LISTEN = auto()
    CHUNK = auto()
    TURN = auto()
    CONTEXT_FULL = auto()
    CANCELLED = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens consumed and produced, of a unit or of the session so far."""

    input_text: int = 0
    input_audio: int = 0
    input_vision: int = 0
    cached: int = 0
    output_text: int = 0
    output_audio: int = 0

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Tokens)))


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds that a unit spent in each phase on the worker; None for a phase that did not run."""

    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None
    speech: float | None = None
    vocoder: float | None = None
    total: float | None = None


@dataclass(frozen=True, slots=True)
class Ready:
    """The session takes units. `ignored_fields` are paths in `antiphon.v1.SessionConfig`."""

    prompt_tokens: int
    context_limit: int
    max_units_in_flight: int
    generate_audio: bool
    ignored_fields: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The input of a unit is in the context."""

    unit: int
    timings: Timings


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of what a unit says."""

    unit: int
    text: str
    audio: bytes


@dataclass(frozen=True, slots=True)
class UnitDone:
    """The last word about what a unit says; `failure` goes with FAILED."""

    unit: int
    end: UnitEnd
    context_tokens: int
    tokens: Tokens = Tokens()
    timings: Timings = Timings()
    failure: Reason | None = None


@dataclass(frozen=True, slots=True)
class Finalized:
    """A unit is closed: there is room for another one at the worker."""

    unit: int


@dataclass(frozen=True, slots=True)
class GoingAway:
    """The worker will end the session in `time_left_s` seconds."""

    time_left_s: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The session at the worker is over, and not because anybody here asked for it."""

    reason: Reason


Signal: TypeAlias = Ready | Prefilled | Piece | UnitDone | Finalized | GoingAway | Failed
