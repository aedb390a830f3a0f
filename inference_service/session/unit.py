"""The units of a session that are not over yet: what was asked of each, and what has been handed on."""

from dataclasses import dataclass, field
from enum import Enum, IntEnum

from inference_service.api.engine import EngineSession, Failure
from inference_service.api.setups import Content, UnitOverrides


class Stream(Enum):
    """The three streams of a session; the value is the method's name."""

    PREFILL = "Prefill"
    GENERATE = "Generate"
    FINALIZE = "Finalize"


_BEFORE = {Stream.PREFILL: None, Stream.GENERATE: Stream.PREFILL, Stream.FINALIZE: Stream.GENERATE}


class Step(IntEnum):
    """What the engine gets next of a unit."""

    PREFILL = 0
    GENERATE = 1
    FINALIZE = 2
    NOTHING = 3


@dataclass(frozen=True)
class Generate:
    """A unit's Generate. With a `refusal` the unit says nothing and ends FAILED."""

    force_listen: bool = False
    overrides: UnitOverrides = field(default_factory=UnitOverrides)
    refusal: Failure | None = None


@dataclass
class Unit:
    """One unit from its first request to its last answer."""

    number: int
    asked_at: dict[Stream, float] = field(default_factory=dict)
    """When each request was read; Generate and Finalize may be ahead of Prefill."""
    answered_at: dict[Stream, float] = field(default_factory=dict)
    """When the last answer of each step was given."""
    content: Content | None = None
    refusal: Failure | None = None
    """Why its input cannot be used; such a unit never reaches the engine."""
    run: Generate | None = None
    finalize: bool = False
    keep_last_token: bool = False
    step: Step = Step.PREFILL

    @property
    def accepted_at(self) -> float | None:
        """When its Prefill was read; None as long as it has not come."""
        return self.asked_at.get(Stream.PREFILL)

    def began(self, step: Stream) -> float | None:
        """When the worker could begin with a step: it was asked for, and the step before was answered."""
        asked, before = self.asked_at.get(step), _BEFORE[step]
        if before is None or asked is None:
            return asked
        ready = self.answered_at.get(before)
        return None if ready is None else max(asked, ready)

    def under_way(self) -> tuple[Stream, float] | None:
        """The step that has begun and is not answered, and when it began."""
        for step in Stream:
            if step not in self.answered_at:
                began = self.began(step)
                return None if began is None else (step, began)
        return None

    def missing(self) -> Stream | None:
        """The request that this unit still waits for."""
        if self.accepted_at is None:
            return Stream.PREFILL
        if self.run is None:
            return Stream.GENERATE
        return None if self.finalize else Stream.FINALIZE

    def hand_on(self, engine: EngineSession) -> bool:
        """Gives the engine the next step if it was asked for; False when there is none to give."""
        match self.step:
            case Step.PREFILL if self.accepted_at is not None:
                if self.content is not None:
                    engine.prefill(self.number, self.content)
                    self.content = None
            case Step.GENERATE if self.run is not None:
                if self.refusal is None:
                    self._run(engine, self.run)
            case Step.FINALIZE if self.finalize:
                if self.refusal is None:
                    engine.finalize(self.number, keep_last_token=self.keep_last_token)
            case _:
                return False
        self.step = Step(self.step + 1)
        return True

    def _run(self, engine: EngineSession, run: Generate) -> None:
        if run.refusal is not None:
            engine.reject(self.number, run.refusal)
        else:
            engine.generate(self.number, run.force_listen, run.overrides)
