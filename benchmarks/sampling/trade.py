"""Latency by the number of speech codes per step: workload W on a clock of CPU time."""

import random
import time
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

import torch

from benchmarks.crowd import workload
from benchmarks.crowd.conversations import seconds_of_speech
from benchmarks.crowd.scripted import script
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
from inference_service.session.base.session import QueuedUnit, Session, Stage

OPTIONS = (1, 5, 25)
SECOND = 1.0
_MEASURED = ("unit_ms", "p50_ms", "p99_ms", "tick_ms")


@dataclass(frozen=True)
class Trade:
    """The cost and latency with `at_once` codes per step and `sessions` sessions, in CPU time."""

    at_once: int
    sessions: int
    unit_ms: float
    """The cost of a unit in milliseconds."""
    p50_ms: float
    """The time from a unit's arrival to its last message."""
    p99_ms: float
    tick_ms: float
    """The 99th percentile of the length of a tick."""


def trades(sessions: int, units: int, rounds: int) -> list[Trade]:
    """Measure each option of `OPTIONS` in turn; return the medians of `rounds` rounds."""
    found: dict[int, list[Trade]] = {at_once: [] for at_once in OPTIONS}
    for _ in range(rounds):
        for at_once in OPTIONS:
            found[at_once].append(Conversations(sessions, at_once).measure(units))
    return [Trade(at_once, sessions, *_medians(rounds_)) for at_once, rounds_ in found.items()]


def _medians(trades: list[Trade]) -> list[float]:
    return [median(getattr(trade, name) for trade in trades) for name in _MEASURED]


class Conversations:
    """Conversations with one unit per second, on a clock that only ticks advance."""

    def __init__(self, sessions: int, at_once: int) -> None:
        self._runtime: Any = table.load(find("antiphon-mini"), torch.device("cpu"))(sessions)
        script(self._runtime)
        self._runtime.speaker.at_once = at_once
        self._now = time.monotonic()
        self._tick = Tick(self._runtime, clock=lambda: self._now)
        self._audio, draw = seconds_of_speech(), random.Random(1)
        setup = DuplexSetup("", DuplexSettings(force_listen_count=0), self._runtime.info.window, seed=1)
        self._sessions: list[Session[Any]] = []
        for slot in range(sessions):
            name = workload.name(slot * workload.CYCLE // sessions, slot)
            session = self._runtime.open(name, slot, setup, lambda event: None)
            session.preprocessor.begin()
            self._runtime.start(session)
            self._sessions.append(session)
        while any(session.stage is Stage.PROMPT for session in self._sessions):
            self._tick.run(self._sessions)
        self._next = [self._now + draw.random() * SECOND for _ in self._sessions]
        self._arrived: list[dict[int, float]] = [{} for _ in self._sessions]
        self._waits: list[float] = []
        self._ticks: list[float] = []

    def measure(self, units: int) -> Trade:
        """Run `units` units of each session; the first one has no latency in the result."""
        sessions = len(self._sessions)
        while any(self._arrived[slot].keys() != set(range(1, units + 1)) or session.has_work
                  for slot, session in enumerate(self._sessions)):  # fmt: skip
            self._send(units)
            began = time.thread_time()
            self._tick.run(self._sessions)
            self._ticks.append(time.thread_time() - began)
            self._now += self._ticks[-1]
            self._note()
        centiles = quantiles(self._waits, n=100)
        return Trade(
            self._runtime.speaker.at_once,
            sessions,
            sum(self._ticks) / (sessions * units) * 1e3,
            centiles[49] * 1e3,
            centiles[98] * 1e3,
            quantiles(self._ticks, n=100)[98] * 1e3,
        )

    def _send(self, units: int) -> None:
        """Queue the units that have arrived.

        If no session has work, first advance the clock to the next arrival.
        """
        if not self._tick.has_work(self._sessions):
            self._now = max(self._now, min(self._next))
        for slot, session in enumerate(self._sessions):
            number = len(self._arrived[slot]) + 1
            if self._next[slot] > self._now or number > units:
                continue
            heard = session.preprocessor.prepare(UnitInput(self._audio[number % len(self._audio)]))
            arrival = self._arrived[slot][number] = self._next[slot]
            session.queue.prefill(
                QueuedUnit(number, heard, arrival, overrides=UnitOverrides(), finalize=True)
            )
            self._next[slot] += SECOND if number < units else float("inf")

    def _note(self) -> None:
        for slot, session in enumerate(self._sessions):
            for event in session.events:
                if isinstance(event, Done) and event.unit > 1:
                    self._waits.append(self._now - self._arrived[slot][event.unit])
            session.events.clear()
