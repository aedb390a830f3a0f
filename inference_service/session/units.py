"""The units of a session: admission, open units, the engine's next steps, and answers."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple, Protocol

from antiphon.contract import Reason
from inference_service.errors import SessionError, UnitOutOfOrder, UnitStalled, UnitTimeout, UnitWindow
from inference_service.interface.engine import (
    Done,
    End,
    EngineSession,
    Failure,
    Finalized,
    Piece,
    Prefilled,
    Rewound,
    UnitUsage,
)
from inference_service.interface.setups import NO_OVERRIDES, Content, UnitOverrides


class Stream(Enum):
    """The three streams of a session; the value is the method's name."""

    PREFILL = "Prefill"
    GENERATE = "Generate"
    FINALIZE = "Finalize"

    # Every message looks a stream up in several dictionaries, and Enum's own __hash__ runs Python code.
    __hash__ = object.__hash__


_BEFORE = {Stream.PREFILL: None, Stream.GENERATE: Stream.PREFILL, Stream.FINALIZE: Stream.GENERATE}


class Step(Enum):
    """The steps of a unit for the engine."""

    PREFILL = auto()
    GENERATE = auto()
    FINALIZE = auto()
    NOTHING = auto()


@dataclass(frozen=True)
class Generate:
    """The Generate of a unit. With a `refusal` the unit has no output and ends FAILED."""

    force_listen: bool = False
    overrides: UnitOverrides = NO_OVERRIDES
    refusal: Failure | None = None


@dataclass
class Unit:
    """One unit from its first request to its last answer."""

    number: int
    asked_at: dict[Stream, float] = field(default_factory=dict)
    """Time at which each request was read; Generate and Finalize may precede Prefill."""
    answered_at: dict[Stream, float] = field(default_factory=dict)
    """Time of the last answer of each step."""
    content: Content | None = None
    refusal: Failure | None = None
    """The reason why its input cannot be used; such a unit never reaches the engine."""
    run: Generate | None = None
    finalize: bool = False
    keep_last_token: bool = False
    step: Step = Step.PREFILL

    @property
    def accepted_at(self) -> float | None:
        """Time at which its Prefill was read; None before."""
        return self.asked_at.get(Stream.PREFILL)

    def began(self, step: Stream) -> float | None:
        """Return the time at which the worker could begin a step: requested, with the previous step
        answered.
        """
        asked, before = self.asked_at.get(step), _BEFORE[step]
        if before is None or asked is None:
            return asked
        ready = self.answered_at.get(before)
        return None if ready is None else max(asked, ready)

    def under_way(self) -> tuple[Stream, float] | None:
        """Return the step that has begun and has no answer, and its start time."""
        for step in Stream:
            if step not in self.answered_at:
                began = self.began(step)
                return None if began is None else (step, began)
        return None

    def missing(self) -> Stream | None:
        """Return the request that this unit still waits for."""
        if self.accepted_at is None:
            return Stream.PREFILL
        if self.run is None:
            return Stream.GENERATE
        return None if self.finalize else Stream.FINALIZE

    def hand_on(self, engine: EngineSession) -> bool:
        """Hand the next requested step to the engine; return False if there is none."""
        if self.step is Step.PREFILL and self.accepted_at is not None:
            if self.content is not None:
                engine.prefill(self.number, self.content)
                self.content = None
            self.step = Step.GENERATE
        elif self.step is Step.GENERATE and self.run is not None:
            if self.refusal is None:
                self._run(engine, self.run)
            self.step = Step.FINALIZE
        elif self.step is Step.FINALIZE and self.finalize:
            if self.refusal is None:
                engine.finalize(self.number, keep_last_token=self.keep_last_token)
            self.step = Step.NOTHING
        else:
            return False
        return True

    def _run(self, engine: EngineSession, run: Generate) -> None:
        if run.refusal is not None:
            engine.reject(self.number, run.refusal)
        else:
            engine.generate(self.number, run.force_listen, run.overrides)


UnitAnswer = Prefilled | Piece | Done | Finalized | Rewound

MOST_REWINDS = 8
"""Limit of rewinds that wait to be carried out."""


@dataclass(frozen=True)
class Rewind:
    """A rewind: the last heard sample of `unit`, None for its last sample, or the reason why it is
    impossible.
    """

    unit: int
    heard_samples: int | None = None
    refusal: Failure | None = None


class Send(Protocol):
    """A function that passes an answer on; the last answer of a step comes with its unit."""

    def __call__(self, stream: Stream, answer: UnitAnswer, unit: Unit | None = None) -> None: ...


class Timer(NamedTuple):
    """The time at which a wait is over, and the resulting error."""

    when: float
    error: type[SessionError]
    message: str


class Units:
    """The units in order of their numbers. All answers leave through `send`."""

    def __init__(self, window: int, send: Send) -> None:
        self._window = window
        self._send = send
        self._units: dict[int, Unit] = {}
        self._refused = False
        """Whether the input of any unit could not be used."""
        self._asked = dict.fromkeys(Stream, 0)  # the newest unit requested on each stream
        self._answered = dict.fromkeys(Stream, 0)  # the newest unit answered on each stream
        self._half_closed: set[Stream] = set()
        self._handing_on = 1  # the unit whose steps the engine gets next
        self._rewinds: deque[tuple[int, Rewind]] = deque()  # each with the unit that it follows
        self._rewinding = 0  # rewinds that the engine has not answered
        self._rewound_at = 0.0
        self._last: int | None = None  # the last unit that is served, once that is known
        self._context_full = False
        self._context_tokens = 0
        self._usage = UnitUsage()
        self._progress_at = 0.0

    # ----------------------------------------------------------------- requests

    def admit(self, stream: Stream, number: int, now: float) -> Unit | None:
        """Return the unit of a request on `stream`; None for a unit that came after the context was full.

        Raises `UnitOutOfOrder` for a gap, a repeat or a unit beyond the last, and `UnitWindow`.
        """
        if self._context_full and number > (self._last or 0):
            return None
        expected = self._asked[stream] + 1
        if number != expected:
            raise UnitOutOfOrder(
                f"{stream.value} must go on with unit {expected}, not {number}.",
                stream=stream.value,
                unit=number,
                expected=expected,
            )
        if self._last is not None and number > self._last:
            raise UnitOutOfOrder(
                f"{stream.value} asks for unit {number}, but Prefill ended after unit {self._last}.",
                stream=stream.value,
                unit=number,
            )
        self._check_window(number)
        self._asked[stream] = number
        unit = self._units.get(number)
        if unit is None:
            unit = self._units[number] = Unit(number)
        unit.asked_at[stream] = now
        return unit

    def bound(self, window: int) -> None:
        """Bound the open units to `window`. Raises `UnitWindow` if more are open."""
        self._window = window
        self._check_window(self.newest)

    @property
    def newest(self) -> int:
        """The newest unit requested on any stream; 0 before the first."""
        return max(self._asked.values())

    def _check_window(self, number: int) -> None:
        if number > self._answered[Stream.FINALIZE] + self._window:
            raise UnitWindow(
                f"At most {self._window} units may be unfinalised; unit {number} is one more.",
                unit=number,
                max_units_in_flight=self._window,
            )

    def half_close(self, stream: Stream) -> None:
        """Half-close `stream`. Raises `UnitOutOfOrder` if that leaves a unit that can never be completed."""
        self._half_closed.add(stream)
        if stream is Stream.PREFILL:
            self._last = self._asked[Stream.PREFILL]
            for other in (Stream.GENERATE, Stream.FINALIZE):
                if self._asked[other] > self._last and not self._context_full:
                    unit = self._last + 1
                    raise UnitOutOfOrder(
                        f"{other.value} asked for unit {unit}, which Prefill never brought.",
                        stream=other.value,
                        unit=unit,
                    )
        self.check_askable()

    def check_askable(self) -> None:
        """Check that every accepted unit can still get its Generate and its Finalize."""
        if not self._half_closed:
            return
        for stream in (Stream.GENERATE, Stream.FINALIZE):
            if stream in self._half_closed and self._asked[stream] < self._asked[Stream.PREFILL]:
                unit = self._asked[stream] + 1
                raise UnitOutOfOrder(
                    f"{stream.value} was half-closed without unit {unit}, which was accepted.",
                    stream=stream.value,
                    unit=unit,
                )

    def refuse(self, unit: Unit, why: Failure) -> None:
        """Refuse the unit's input."""
        unit.refusal, self._refused = why, True

    def rewind(self, order: Rewind, now: float) -> None:
        """Queue a rewind behind the units whose Generate has arrived; answer an impossible one at once."""
        refusal = order.refusal
        if refusal is None and order.unit > self._answered[Stream.FINALIZE]:
            refusal = _no_rewind(f"unit: unit {order.unit} is not finalised")
        if refusal is None and self._rewinding >= MOST_REWINDS:
            refusal = _no_rewind(f"rewind: {MOST_REWINDS} wait already")
        if refusal is not None:
            self._send(Stream.GENERATE, Rewound(order.unit, self._context_tokens, failure=refusal))
            return
        self._rewinding += 1
        self._rewound_at = now
        self._rewinds.append((self._asked[Stream.GENERATE], order))

    # -------------------------------------------------------------- to the engine

    def advance(self, engine: EngineSession, now: float) -> None:
        """Hand all possible steps to the engine, and answer refused units."""
        if self._rewinds:
            self._hand_rewinds_on(engine)
        while (unit := self._units.get(self._handing_on)) is not None:
            if not unit.hand_on(engine):
                break
            if unit.step is Step.NOTHING:
                self._handing_on += 1
                self._hand_rewinds_on(engine)
        if self._refused:
            for unit in list(self._units.values()):
                if unit.refusal is not None:
                    self._answer_refused(unit, unit.refusal, now)

    def _hand_rewinds_on(self, engine: EngineSession) -> None:
        while self._rewinds and self._rewinds[0][0] < self._handing_on:
            _, order = self._rewinds.popleft()
            engine.rewind(order.unit, order.heard_samples)

    def _answer_refused(self, unit: Unit, refusal: Failure, now: float) -> None:
        """Answer a unit that never reaches the engine on all three streams, each in its turn."""
        number = unit.number
        if unit.accepted_at is not None and self._is_next(Stream.PREFILL, unit):
            self.answer(Prefilled(number, failure=refusal), now)
        is_heard = self._answered[Stream.PREFILL] >= number
        if is_heard and unit.run is not None and self._is_next(Stream.GENERATE, unit):
            self.answer(Done(number, End.FAILED, None, self._context_tokens, failure=refusal), now)
        is_run = self._answered[Stream.GENERATE] >= number
        if is_run and unit.finalize and self._is_next(Stream.FINALIZE, unit):
            self.answer(Finalized(number, self._context_tokens, 0, self._usage), now)

    def _is_next(self, stream: Stream, unit: Unit) -> bool:
        return self._answered[stream] == unit.number - 1

    # ------------------------------------------------------------ from the engine

    def start(self, context_tokens: int, now: float) -> None:
        """Note that the prompt is in the context: units make progress from now on."""
        self._context_tokens = context_tokens
        self._progress_at = now

    def progress(self, now: float) -> None:
        """Note progress of the engine."""
        self._progress_at = now

    def answer(self, answer: UnitAnswer, now: float) -> None:
        """Pass on one answer and record it; each answer counts as progress."""
        self.progress(now)
        match answer:
            case Piece():
                self._send(Stream.GENERATE, answer)
            case Prefilled():
                if answer.failure is None:
                    self._context_tokens = answer.context_tokens
                self._book(Stream.PREFILL, answer, now)
            case Done():
                self._context_tokens = answer.context_tokens
                if answer.end is End.CONTEXT_FULL:
                    self._context_full = True
                    self._last = self._asked[Stream.PREFILL]
                self._book(Stream.GENERATE, answer, now)
            case Finalized():
                self._context_tokens, self._usage = answer.context_tokens, answer.session_usage
                self._book(Stream.FINALIZE, answer, now)
                self._units.pop(answer.unit, None)
            case Rewound():
                self._rewinding -= 1
                self._rewound_at = now
                self._context_tokens = answer.context_tokens
                self._send(Stream.GENERATE, answer)

    def _book(self, stream: Stream, answer: Prefilled | Done | Finalized, now: float) -> None:
        self._answered[stream] = answer.unit
        unit = self._units.get(answer.unit)
        if unit is not None:
            unit.answered_at[stream] = now
        self._send(stream, answer, unit)

    # ------------------------------------------------------------------ questions

    @property
    def answers_advance(self) -> bool:
        """Whether an answer may lead to further steps: an answer to a refused unit, or the session's end."""
        return self._refused or self._last is not None

    @property
    def is_ending(self) -> bool:
        """Whether no further unit is accepted."""
        return self._last is not None

    @property
    def is_finished(self) -> bool:
        """Whether no further unit is accepted, every accepted one is finalised, and no rewind waits."""
        is_served = self._last is not None and self._answered[Stream.FINALIZE] >= self._last
        return is_served and not self._rewinding

    @property
    def idle_since(self) -> float | None:
        """Time at which the last unit was finalised; None while one is open."""
        is_idle = self._asked[Stream.PREFILL] == self._answered[Stream.FINALIZE]
        return self._progress_at if is_idle else None

    @property
    def open_units(self) -> list[Unit]:
        """The units that are not over, in no particular order."""
        return list(self._units.values())

    def deadlines(self, patience: float) -> Iterator[Timer]:
        """Yield the time at which each unit will have waited for `patience` seconds, and the error.

        The wait for a unit's own requests begins with its Prefill. The wait for the engine begins with its
        last sign of progress, so that a long answer is not cut off. The same holds for a rewind.
        """
        if self._rewinding:
            message = f"A rewind was not carried out within {patience:g} s."
            yield Timer(max(self._rewound_at, self._progress_at) + patience, UnitStalled, message)
        for unit in self._units.values():
            missing = unit.missing()
            if unit.accepted_at is None:
                continue
            if missing is not None:
                message = f"{missing.value} of unit {unit.number} did not come within {patience:g} s."
                yield Timer(unit.accepted_at + patience, UnitTimeout, message)
            elif self._is_next(Stream.FINALIZE, unit):
                message = f"Unit {unit.number} was not finished within {patience:g} s."
                yield Timer(max(unit.accepted_at, self._progress_at) + patience, UnitStalled, message)


def _no_rewind(problem: str) -> Failure:
    return Failure(Reason.PARAMS_INVALID, f"{problem}.", problem.split(":")[0])
