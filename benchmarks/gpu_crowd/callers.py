"""Conversations of workload W with an engine in its own process, with the times of each second."""

import heapq
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, Final

import numpy as np
from PIL import Image

from benchmarks.crowd import workload
from benchmarks.crowd.workload import speaks
from benchmarks.gpu_crowd.worker import Worker
from inference_service.interface.engine import (
    Closed,
    Done,
    Event,
    Finalized,
    Piece,
    Ready,
    SessionFailed,
)
from inference_service.interface.setups import (
    NO_OVERRIDES,
    DuplexSettings,
    DuplexSetup,
    UnitInput,
    Window,
)

UNIT_S: Final = 1.0
RATE_HZ: Final = 16_000
OPEN_S: Final = 120.0
_SIDE: Final = 448
_NOISES: Final = 16
"""Different seconds of noise, and pictures."""


@dataclass
class Unit:
    """A second that was due at a monotonic time, whenever its answer came."""

    due: float
    first: float = float("inf")
    """When the first event that answers it came."""
    done: float = float("inf")
    speaks: bool = False
    text_tokens: int = 0
    speech_tokens: int = 0


@dataclass(eq=False)
class Talker:
    """One session, `phase` units into its cycle; `units` are those that were timed."""

    phase: int
    session: Any = None
    units: dict[int, Unit] = field(default_factory=dict)
    number: int = 0
    waiting: int = 0
    """Units that are not over yet."""
    failure: SessionFailed | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

    def take(self, events: Sequence[Event]) -> None:
        """Accept the events of the engine."""
        now = time.monotonic()
        for event in events:
            self._take(event, now)

    def _take(self, event: Event, now: float) -> None:
        match event:
            case Ready():
                self.ready.set()
            case SessionFailed():
                self.failure = event
                self.ready.set()
            case Closed():
                self.closed.set()
            case Finalized():
                self.waiting -= 1
            case Done():
                if unit := self.units.get(event.unit):
                    unit.first, unit.done = min(unit.first, now), now
                    unit.text_tokens = event.usage.output_text_tokens
                    unit.speech_tokens = event.usage.output_audio_tokens
            case Piece():
                if unit := self.units.get(event.unit):
                    unit.first = min(unit.first, now)

    def say(self, content: UnitInput, due: float | None) -> None:
        """The next second, timed if it was due at a time."""
        self.number += 1
        if due is not None:
            place = (self.phase + self.number - 1) % workload.CYCLE
            self.units[self.number] = Unit(due, speaks=speaks(place))
        self.waiting += 1
        self.session.prefill(self.number, content)
        self.session.generate(self.number, False, NO_OVERRIDES)
        self.session.finalize(self.number)


class Crowd:
    """Talkers at the engine of a worker, in its first slots. `close` in any case."""

    def __init__(
        self, worker: Worker, phases: Sequence[int], window: Window, *, sees: bool, seed: int
    ) -> None:
        """One talker for each of `phases`."""
        self._worker = worker
        rng = np.random.default_rng(seed)
        self._contents = _contents(rng, sees=sees)
        settings = DuplexSettings(force_listen_count=0)
        self.talkers = [Talker(phase) for phase in phases]
        for slot, talker in enumerate(self.talkers):
            setup = DuplexSetup("", settings, window, seed=slot, sees=sees)
            name = workload.name(talker.phase, slot)
            talker.session = worker.engine.open(name, slot, setup, talker.take)
        for talker in self.talkers:
            if not talker.ready.wait(OPEN_S) or talker.failure:
                raise SystemExit(f"A session could not be opened: {talker.failure or worker.fatal}")

    def age(self, units: int) -> None:
        """Give every session a history of `units` units, as fast as the engine processes them."""
        for _ in range(units):
            for number, talker in enumerate(self.talkers):
                talker.say(self._contents[number % len(self._contents)], None)
            while any(talker.waiting > 0 for talker in self.talkers):
                self._check()
                time.sleep(0.001)

    def converse(self, seconds: float) -> list[Unit]:
        """Speak in real time, each at a phase of its own; the units that were due."""
        self._worker.phases.reset()
        begin = time.monotonic() + 0.1
        count = len(self.talkers)
        due = [(begin + UNIT_S * i / count, i) for i in range(count)]
        heapq.heapify(due)
        while due[0][0] < begin + seconds:
            at, number = heapq.heappop(due)
            time.sleep(max(0.0, at - time.monotonic()))
            content = self._contents[(number + len(due)) % len(self._contents)]
            self.talkers[number].say(content, at)
            heapq.heappush(due, (at + UNIT_S, number))
        patience = time.monotonic() + 2 * UNIT_S
        while any(talker.waiting > 0 for talker in self.talkers) and time.monotonic() < patience:
            time.sleep(0.001)
        self._check()
        return [unit for talker in self.talkers for unit in talker.units.values()]

    def close(self) -> None:
        """End all sessions, so that their slots are clean."""
        for talker in self.talkers:
            if talker.session is not None:
                talker.session.close()
        for talker in self.talkers:
            if talker.session is not None:
                talker.closed.wait(OPEN_S)

    def _check(self) -> None:
        failures = [talker.failure for talker in self.talkers if talker.failure]
        if failures or self._worker.fatal:
            raise SystemExit(f"A session failed: {(failures or self._worker.fatal)[0]}")


def _contents(rng: np.random.Generator, *, sees: bool) -> Sequence[UnitInput]:
    return [
        UnitInput((0.1 * rng.standard_normal(RATE_HZ)).astype(np.float32), (_picture(rng),) if sees else ())
        for _ in range(_NOISES)
    ]


def _picture(rng: np.random.Generator) -> bytes:
    """Return a JPEG of one slice."""
    coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    data = BytesIO()
    coarse.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC).save(data, "JPEG")
    return data.getvalue()
