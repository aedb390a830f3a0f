"""A session without a worker: its effects are lists, and the test drives its engine."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from inference_service.errors import SessionError
from inference_service.interface.engine import (
    Closed,
    Done,
    End,
    EngineSession,
    Event,
    Failure,
    Finalized,
    Prefilled,
    Ready,
    Rewound,
    UnitUsage,
)
from inference_service.interface.setups import (
    Content,
    DuplexSettings,
    DuplexSetup,
    SessionSetup,
    UnitInput,
    UnitOverrides,
    Window,
)
from inference_service.session.machine import Answer, Limits, SessionMachine
from inference_service.session.units import Generate, Stream, Unit

INPUT = UnitInput(np.zeros(16_000, np.float32))
SETUP = DuplexSetup("", DuplexSettings(), Window(), 1)


@dataclass
class QueuedEngine:
    """An engine session that executes its orders one `step` at a time, like the engine's thread."""

    orders: deque[tuple[str, int]] = field(default_factory=deque)
    history: list[tuple[str, int]] = field(default_factory=list)
    rejected: dict[int, Failure] = field(default_factory=dict)
    rewinds: list[tuple[int, int | None]] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    """For each closed unit whether its last token stays."""
    cancelled: int = 0
    closes: int = 0

    def prefill(self, unit: int, content: Content) -> None:
        self._order("prefill", unit)

    def generate(self, unit: int, force_listen: bool, overrides: UnitOverrides) -> None:
        self._order("generate", unit)

    def reject(self, unit: int, failure: Failure) -> None:
        self.rejected[unit] = failure
        self._order("generate", unit)

    def finalize(self, unit: int, *, keep_last_token: bool = False) -> None:
        self.kept.append(keep_last_token)
        self._order("finalize", unit)

    def _order(self, step: str, unit: int) -> None:
        self.orders.append((step, unit))
        self.history.append((step, unit))

    def cancel(self, unit: int) -> None:
        self.cancelled = max(self.cancelled, unit)

    def rewind(self, unit: int, heard_samples: int | None) -> None:
        self.rewinds.append((unit, heard_samples))
        self._order("rewind", unit)

    def close(self) -> None:
        self.closes += 1
        self.orders.clear()

    def step(self, end: End = End.LISTEN) -> Event:
        """Execute the next order, which must exist, and report its result."""
        step, unit = self.orders.popleft()
        tokens = 10 + 12 * unit
        match step:
            case "prefill":
                return Prefilled(unit, tokens)
            case "generate":
                if failure := self.rejected.get(unit):
                    return Done(unit, End.FAILED, None, tokens, failure=failure)
                end = End.CANCELLED if unit <= self.cancelled else end
                return Done(unit, end, None, tokens)
            case "rewind":
                return Rewound(unit, tokens, 1)
            case _:
                return Finalized(unit, tokens, 0, UnitUsage(input_audio_tokens=10 * unit))


class Stage:
    """One session with `SessionEffects` that record into lists, and a clock that the test sets."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.now = 100.0
        self.engine = QueuedEngine()
        self.sent: list[tuple[Stream, Answer | Ready]] = []
        self.acts: list[str] = []
        self.outcome: SessionError | None = None
        self.cut: list[tuple[int, Stream, float]] = []
        """Steps that were under way at the end, and when they had begun."""
        self.steps: list[tuple[int, Stream, float | None]] = []
        """Steps that were answered, and when they had begun."""
        self.session = SessionMachine("s", self, limits or Limits(), self.now)

    def open(self, setup: SessionSetup) -> EngineSession:
        self.acts.append("open")
        return self.engine

    def ready(self, answer: Ready) -> None:
        assert "end" not in self.acts, "an answer came after the end"
        self.sent.append((Stream.PREFILL, answer))

    def send(self, stream: Stream, answer: Answer, unit: Unit | None = None) -> None:
        assert "end" not in self.acts, "an answer came after the end"
        self.sent.append((stream, answer))
        if unit is not None:
            self.steps.append((unit.number, stream, unit.began(stream)))

    def cleaning(self, error: SessionError | None, units: Sequence[Unit]) -> None:
        self.acts.append("cleaning")
        self.cut = [(unit.number, *under_way) for unit in units if (under_way := unit.under_way())]

    def clean(self) -> None:
        self.acts.append("clean")

    def end(self, error: SessionError | None) -> None:
        self.acts.append("end")
        self.outcome = error

    def call(self, method: str, *arguments: Any) -> None:
        """Calls the session and, as whoever runs it does, fails it with the error of a broken rule."""
        try:
            getattr(self.session, method)(*arguments)
        except SessionError as error:
            self.session.fail(error, self.now)

    def attach_all(self) -> "Stage":
        for stream in Stream:
            self.session.attach(stream, self.now)
        return self

    def configure(self, setup: SessionSetup = SETUP) -> None:
        self.call("expect_config", 0)
        if not self.session.is_over:
            self.call("open", setup, self.now)

    def active(self) -> "Stage":
        """Return a session that is attached, configured and ready."""
        self.attach_all().configure()
        self.event(Ready(10))
        return self

    def ask(self, unit: int, content: Any = INPUT, run: Generate | None = None) -> None:
        """Send all three requests of a unit."""
        self.call("prefill", unit, content, self.now)
        self.call("generate", unit, run or Generate(), self.now)
        self.call("finalize", unit, self.now)

    def event(self, event: Event) -> None:
        self.session.event(event, self.now)

    def work(self, end: End = End.LISTEN) -> None:
        """Let the engine execute all its orders."""
        while self.engine.orders:
            self.event(self.engine.step(end))
        if self.engine.closes and "clean" not in self.acts:
            self.event(Closed())

    def ended(self) -> str | None:
        """Let the engine execute all its orders and clean up; return why the session failed."""
        self.work()
        return self.reason

    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self.now += seconds
        self.session.expire(self.now)

    def answers(self, stream: Stream) -> list[Any]:
        return [answer for where, answer in self.sent if where is stream]

    @property
    def reason(self) -> str | None:
        """Why the session failed."""
        return self.outcome.reason if self.outcome is not None else None
