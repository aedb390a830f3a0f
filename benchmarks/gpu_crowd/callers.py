"""Conversations of workload W with an engine in this process, with the times of each unit."""

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
"""The number of different units, each a second of noise with a picture."""


@dataclass
class Unit:
    """A unit that was due at the monotonic time `due`, and the times of its answer; infinite without one."""

    due: float
    first: float = float("inf")
    """The time of the first event of its answer."""
    done: float = float("inf")
    speaks: bool = False
    text_tokens: int = 0
    speech_tokens: int = 0


@dataclass(eq=False)
class Caller:
    """One session that begins `phase` units into the cycle; `units` are the timed ones by number."""

    phase: int
    session: Any = None
    units: dict[int, Unit] = field(default_factory=dict)
    number: int = 0
    waiting: int = 0
    """The number of sent units that are not finalized."""
    failure: SessionFailed | None = None
    ready: threading.Event = field(default_factory=threading.Event)
    closed: threading.Event = field(default_factory=threading.Event)

    def take(self, events: Sequence[Event]) -> None:
        """Record events of the engine."""
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
        """Send the next unit; time it if `due` is given."""
        self.number += 1
        if due is not None:
            place = (self.phase + self.number - 1) % workload.CYCLE
            self.units[self.number] = Unit(due, speaks=speaks(place))
        self.waiting += 1
        self.session.prefill(self.number, content)
        self.session.generate(self.number, False, NO_OVERRIDES)
        self.session.finalize(self.number)


class Crowd:
    """Callers in the first slots of a worker's engine. Call `close` in any case."""

    def __init__(
        self, worker: Worker, phases: Sequence[int], window: Window, *, sees: bool, seed: int
    ) -> None:
        """Open a session for each of `phases`. Raises `SystemExit` if a session fails."""
        self._worker = worker
        rng = np.random.default_rng(seed)
        self._contents = _contents(rng, sees=sees)
        settings = DuplexSettings(force_listen_count=0)
        self.callers = [Caller(phase) for phase in phases]
        for slot, caller in enumerate(self.callers):
            setup = DuplexSetup("", settings, window, seed=slot, sees=sees)
            name = workload.name(caller.phase, slot)
            caller.session = worker.engine.open(name, slot, setup, caller.take)
        for caller in self.callers:
            if not caller.ready.wait(OPEN_S) or caller.failure:
                raise SystemExit(f"A session could not be opened: {caller.failure or worker.fatal}")

    def age(self, units: int) -> None:
        """Give every session a history of `units` units, as fast as the engine processes them."""
        for _ in range(units):
            for number, caller in enumerate(self.callers):
                caller.say(self._contents[number % len(self._contents)], None)
            while any(caller.waiting > 0 for caller in self.callers):
                self._check()
                time.sleep(0.001)

    def converse(self, seconds: float) -> list[Unit]:
        """Send units in real time, evenly spread over each second; return the timed units."""
        self._worker.phases.reset()
        begin = time.monotonic() + 0.1
        count = len(self.callers)
        due = [(begin + UNIT_S * i / count, i) for i in range(count)]
        heapq.heapify(due)
        while due[0][0] < begin + seconds:
            at, number = heapq.heappop(due)
            time.sleep(max(0.0, at - time.monotonic()))
            content = self._contents[(number + len(due)) % len(self._contents)]
            self.callers[number].say(content, at)
            heapq.heappush(due, (at + UNIT_S, number))
        patience = time.monotonic() + 2 * UNIT_S
        while any(caller.waiting > 0 for caller in self.callers) and time.monotonic() < patience:
            time.sleep(0.001)
        self._check()
        return [unit for caller in self.callers for unit in caller.units.values()]

    def close(self) -> None:
        """Close all sessions and wait until their slots are clean."""
        for caller in self.callers:
            if caller.session is not None:
                caller.session.close()
        for caller in self.callers:
            if caller.session is not None:
                caller.closed.wait(OPEN_S)

    def _check(self) -> None:
        failures = [caller.failure for caller in self.callers if caller.failure]
        if failures or self._worker.fatal:
            raise SystemExit(f"A session failed: {(failures or self._worker.fatal)[0]}")


def _contents(rng: np.random.Generator, *, sees: bool) -> Sequence[UnitInput]:
    return [
        UnitInput((0.1 * rng.standard_normal(RATE_HZ)).astype(np.float32), (_picture(rng),) if sees else ())
        for _ in range(_NOISES)
    ]


def _picture(rng: np.random.Generator) -> bytes:
    """Return a random JPEG of the size of one slice."""
    coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8))
    data = BytesIO()
    coarse.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC).save(data, "JPEG")
    return data.getvalue()
