"""Effect of equal phases: the units of all conversations begin at the same instant.

There is no goal: units that begin together cost less, and spreading them improves no session.

The benchmark runs only the engine, on a clock of its thread's CPU time. Other load on the machine has no
effect. The clock includes the preprocessing of a unit's audio.
"""

import itertools
import math
import random
import time
from collections.abc import Iterator
from typing import Any, Final

import torch

from benchmarks.crowd import workload
from benchmarks.crowd.conversations import UNIT_S, Tally, Unit, seconds_of_speech
from benchmarks.crowd.scripted import script
from benchmarks.crowd.worker import Spent
from benchmarks.report import Report
from inference_service.checkpoints.location import find
from inference_service.engine.tick import Tick
from inference_service.families import table
from inference_service.interface.engine import Done
from inference_service.interface.setups import (
    DuplexSettings,
    DuplexSetup,
    UnitInput,
    UnitOverrides,
)
from inference_service.session.base.session import QueuedUnit, Session

CROWDS: Final = (16, 32, 64)
WARM_UP_S: Final = 5


class Crowd:
    """Conversations of workload W; session i sends its units at `offsets[i]` seconds within each second."""

    def __init__(self, sessions: int, seed: int, offsets: list[float]) -> None:
        runtime: Any = table.load(find("antiphon-mini"), torch.device("cpu"))(sessions)
        script(runtime)
        self._now = 0.0
        self._since = time.thread_time()
        self._tick = Tick(runtime, clock=self._clock)
        self._audio = seconds_of_speech()
        self._offsets = offsets
        self._units: list[list[Unit]] = [[] for _ in range(sessions)]
        draw = random.Random(seed)
        setup = DuplexSetup("", DuplexSettings(force_listen_count=0), runtime.info.window, seed=1)
        self._sessions: list[Session[Any]] = []
        for slot in range(sessions):
            name = workload.name(draw.randrange(workload.CYCLE), slot)
            session = runtime.open(name, slot, setup, lambda event: None)
            session.preprocessor.begin()
            runtime.start(session)
            self._sessions.append(session)

    def _clock(self) -> float:
        return self._now + time.thread_time() - self._since

    def run(self, seconds: int) -> Tally:
        """Run for `seconds` of simulated time; return the units after the warm-up."""
        spent = 0.0
        arrivals = self._arrivals(seconds)
        due, slot = next(arrivals)
        while due < math.inf or self._tick.has_work(self._sessions):
            self._since = time.thread_time()
            while due <= self._now:
                self._come(due, slot)
                due, slot = next(arrivals)
            if self._tick.has_work(self._sessions):
                self._tick.run(self._sessions)
            took = time.thread_time() - self._since
            spent += took if self._now >= WARM_UP_S else 0.0
            self._now, self._since = self._now + took, time.thread_time()
            self._note()
            if not self._tick.has_work(self._sessions):
                self._now = max(self._now, min(due, seconds))
        counted = [unit for units in self._units for unit in units if unit.due >= WARM_UP_S]
        return Tally(len(self._sessions), counted, Spent(spent, spent, spent), seconds - WARM_UP_S)

    def _arrivals(self, seconds: int) -> Iterator[tuple[float, int]]:
        order = sorted(range(len(self._offsets)), key=self._offsets.__getitem__)
        for number in range(seconds):
            for slot in order:
                yield number * UNIT_S + self._offsets[slot], slot
        yield from itertools.repeat((math.inf, 0))

    def _come(self, due: float, slot: int) -> None:
        session, units = self._sessions[slot], self._units[slot]
        units.append(Unit(due))
        number = len(units)
        heard = session.preprocessor.prepare(UnitInput(self._audio[number % len(self._audio)]))
        session.queue.prefill(QueuedUnit(number, heard, due, overrides=UnitOverrides(), finalize=True))

    def _note(self) -> None:
        for session, units in zip(self._sessions, self._units, strict=True):
            for event in session.events:
                if isinstance(event, Done):
                    units[event.unit - 1].done = self._now
            session.events.clear()


@torch.inference_mode()
def one(sessions: int, seconds: int, *, spread: bool) -> Tally:
    """Run sessions whose units begin at random times if `spread`, otherwise all at the same time."""
    draw = random.Random(2)
    offsets = [draw.random() * UNIT_S if spread else 0.0 for _ in range(sessions)]
    return Crowd(sessions, 1, offsets).run(seconds)


async def measure(is_short: bool) -> Report:
    """Return the table for several numbers of sessions."""
    torch.set_num_threads(1)
    rows: list[tuple[Any, ...]] = []
    for sessions in CROWDS[:2] if is_short else CROWDS:
        at_once = 0.0
        for spread in (False, True):
            tally = one(sessions, WARM_UP_S + (10 if is_short else 15), spread=spread)
            cost = tally.ms_per_unit(tally.spent.process)
            at_once = at_once or cost
            rows.append(
                (
                    sessions,
                    "at random" if spread else "at once",
                    tally.misses,
                    tally.percentile_ms(0.5),
                    tally.percentile_ms(0.99),
                    cost,
                    cost / at_once,
                    tally.spent.process / tally.seconds,
                )
            )
    return Report(
        "phases",
        "The engine alone, in processor time: units of workload W that begin at random or all at once",
        ("sessions", "begin", "late", "p50 ms", "p99 ms", "CPU-ms per unit", "relative to at once", "busy"),
        rows,
        note="No goal: the phases of sessions are left as they are: units that begin together cost less.",
        where="one thread; late, p50 and p99 by its processor time",
    )
