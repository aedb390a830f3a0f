"""A discrete-event simulation of one worker: callers request sessions, units arrive, and ticks run.

Tick, scheduler, sessions, page pools, slots and admission are those of the worker. Only the clock and the
parts of the model are simulated.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch

from benchmarks.crowd import workload
from benchmarks.density.cost import Cost
from benchmarks.density.crowd import IN_FLIGHT, Caller, EventQueue, callers
from benchmarks.density.stand_ins import Clock, TimedRuntime
from benchmarks.full_size.sizes import FULL
from benchmarks.gpu_crowd import model
from inference_service.engine.batch.scheduler import UNIT_S
from inference_service.engine.tick import Tick
from inference_service.errors import NoFreeSlot
from inference_service.interface.engine import (
    Done,
    Finalized,
    Ready,
    SessionFailed,
)
from inference_service.interface.setups import (
    DuplexSettings,
    DuplexSetup,
    Tenant,
    UnitOverrides,
    Window,
    WindowMode,
)
from inference_service.session.admission import Admission
from inference_service.session.base.session import QueuedUnit, Session, Stage
from inference_service.session.kinds.components import DuplexComponents, View
from inference_service.session.kinds.duplex import PreparedInput
from inference_service.session.slots import SlotTable

SETTLING_S: Final = 5.0
"""The seconds between the last caller and the measured period."""
LEAST_TICK_S: Final = 1e-4
"""Time that each iteration of the engine's loop takes in addition to the computation."""
_UNHEARD: Final = torch.zeros(1, 1)
_FRAME: Final = View((None,))


@dataclass(frozen=True)
class Plan:
    """The callers and the worker of a simulation."""

    sessions: int
    """Callers that request a session, one after another."""
    slots: int
    admits: bool = True
    """Whether the worker has admission control: it rejects sessions that would make units late."""
    seconds: float = float(workload.CYCLE)
    """Length of the measured period."""
    every_s: float = 0.25
    """Time between two callers."""
    sees: bool = False
    """Whether each unit has a frame."""
    context_limit: int = 8192
    jitter_s: float = 0.0
    seed: int = 1


@dataclass
class Outcome:
    """The results of a simulation."""

    plan: Plan
    refused_slots: int = 0
    """The number of callers without a free slot."""
    refused_time: int = 0
    """The number of callers that admission control rejected for lack of time."""
    admitted: list[Caller] = field(default_factory=list)
    ticks: list[float] = field(default_factory=list)
    """Lengths of the ticks in the measured period, in seconds."""
    pages: int = 0
    """Pages of the language model's cache."""
    most_pages: int = 0
    """The largest number of pages in use."""
    pages_left: int = 0
    """Pages in use after the end of all sessions."""

    @property
    def latencies(self) -> list[float]:
        """The latencies of all answered units, ascending."""
        return sorted(it for caller in self.admitted for it in caller.latencies)

    @property
    def late(self) -> float:
        """The share of measured units with a late answer or none."""
        return sum(it.late for it in self.admitted) / max(1, sum(it.units for it in self.admitted))

    @property
    def latest(self) -> float:
        """The largest such share of one session."""
        return max((it.late / max(1, it.units) for it in self.admitted), default=0.0)

    @property
    def fairness(self) -> float:
        """Jain's fairness index of the mean latencies of sessions: 1 if they are equal, 1/n at worst."""
        means = [it.mean_s for it in self.admitted]
        squares = len(means) * sum(it * it for it in means)
        return sum(means) ** 2 / squares if squares else 1.0

    @property
    def busy(self) -> float:
        """Share of the time in which the engine worked."""
        return sum(self.ticks) / self.plan.seconds

    def quantile(self, share: float) -> float:
        """Return this quantile of the latencies in seconds; infinite if nothing was answered."""
        ordered = self.latencies
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("inf")


def components(context_limit: int) -> DuplexComponents:
    """Return a small model; the simulation uses only its bookkeeping."""
    made = model.components(model.small(), torch.device("cpu"), torch.float32, context_limit)
    return replace(made, slice_tokens=FULL.config.vision.queries)


@torch.inference_mode()
def simulate(parts: DuplexComponents, cost: Cost, plan: Plan) -> Outcome:
    """Simulate `plan` on a worker whose steps take the times of `cost`."""
    return _Simulation(parts, cost, plan).run()


class _Simulation:
    def __init__(self, parts: DuplexComponents, cost: Cost, plan: Plan) -> None:
        self._plan, self._clock, self._events = plan, Clock(), EventQueue()
        self._runtime = TimedRuntime(parts, max(1, plan.slots), self._clock, cost)
        self._tick = Tick(self._runtime, clock=self._clock)
        self._slots = SlotTable(plan.slots)
        self._admission = Admission(self._clock, is_on=plan.admits)
        self._sessions: dict[int, Session[Any]] = {}
        self._callers: dict[int, Caller] = {}
        pool = self._runtime.language.cache.pool
        self._outcome = Outcome(plan, pages=pool.pages)
        self._draw = random.Random(plan.seed)
        limit = plan.context_limit
        self._window = Window(WindowMode.BASIC, limit * 3 // 4, limit // 2)
        self._watched_from = plan.sessions * plan.every_s + SETTLING_S
        self._watched_to = self._watched_from + plan.seconds

    def run(self) -> Outcome:
        for number, caller in enumerate(callers(self._plan.sessions, self._draw)):
            at = (number + self._draw.random()) * self._plan.every_s
            self._events.add(at, lambda now, caller=caller: self._ask(caller))  # type: ignore[misc]
        sessions = self._sessions.values()
        while self._clock.now < self._watched_to + IN_FLIGHT * UNIT_S:
            self._follow()
            if not self._tick.has_work(sessions):
                if self._events.next_at == float("inf"):
                    break
                self._clock.now = max(self._clock.now, self._events.next_at)
                continue
            self._iterate(sessions)
        for slot, caller in self._callers.items():
            if not caller.has_begun:
                self._miss(caller, self._watched_to)
            self._close(slot)
        self._outcome.pages_left = self._runtime.language.cache.pool.used
        return self._outcome

    def _iterate(self, sessions: Iterable[Session[Any]]) -> None:
        """Run one iteration of the engine's loop and deliver its events."""
        began = self._clock.now
        ticked = self._tick.run(self._sessions.values(), self._follow)
        if ticked:
            self._admission.ticked([ticked])
        self._clock.spend(LEAST_TICK_S)
        if self._watched_from <= began < self._watched_to:
            self._outcome.ticks.append(self._clock.now - began)
        used = self._runtime.language.cache.pool.used
        self._outcome.most_pages = max(self._outcome.most_pages, used)
        for session in sessions:
            if session.events:
                self._tell(session)

    def _follow(self) -> None:
        self._events.run_until(self._clock.now)

    def _ask(self, caller: Caller) -> None:
        """Request a session, with the checks of the worker's servicer."""
        if not self._admission.has_time():
            self._outcome.refused_time += 1
            return
        try:
            slot = self._slots.acquire()
        except NoFreeSlot:
            self._outcome.refused_slots += 1
            return
        self._admission.enter()
        self._slots.attach(slot)
        tenant = Tenant(f"tenant of slot {slot}".encode())
        settings = DuplexSettings(force_listen_count=0)
        setup = DuplexSetup("", settings, self._window, seed=slot, sees=self._plan.sees, tenant=tenant)
        name = workload.name(caller.phase, slot)
        session = self._runtime.open(name, slot, setup, lambda events: None)
        session.preprocessor.begin()
        session.opened, session.stage = self._clock.now, Stage.OPENING
        session.take_events(self._clock.now)
        caller.session = self._sessions[slot] = session
        self._callers[slot] = caller
        self._outcome.admitted.append(caller)

    def _send(self, caller: Caller, due: float) -> None:
        """Send the unit that is due, and plan the next one."""
        if due >= self._watched_to:
            return
        delay = abs(self._draw.gauss(0.0, self._plan.jitter_s)) if self._plan.jitter_s else 0.0
        self._events.add(due + delay, lambda at: self._arrive(caller, at))
        self._events.add(due + UNIT_S, lambda at: self._send(caller, at))

    def _arrive(self, caller: Caller, at: float) -> None:
        counts = at >= self._watched_from
        if caller.in_flight >= IN_FLIGHT:
            caller.dropped += counts
            return
        caller.number += 1
        caller.in_flight += 1
        caller.sent[caller.number] = at
        if counts:
            caller.watched.add(caller.number)
        heard = PreparedInput(_UNHEARD, (_FRAME,) if self._plan.sees else ())
        unit = QueuedUnit(caller.number, heard, at, overrides=UnitOverrides(), finalize=True)
        assert caller.session is not None
        caller.session.queue.prefill(unit)

    def _miss(self, caller: Caller, until: float) -> None:
        """Count the measured units of a caller whose session had not begun at `until`."""
        caller.dropped += max(0, int(min(until, self._watched_to) - self._watched_from))

    def _tell(self, session: Session[Any]) -> None:
        caller, now = self._callers[session.slot], self._clock.now
        for event in session.take_events(now):
            match event:
                case Ready():
                    caller.has_begun = True
                    self._miss(caller, now)
                    self._events.add(now + self._draw.random() * UNIT_S, lambda at: self._send(caller, at))
                case Done():
                    latency = now - caller.sent.pop(event.unit)
                    self._admission.answered((now, latency / UNIT_S))
                    if event.unit in caller.watched:
                        caller.latencies.append(latency)
                case Finalized():
                    caller.in_flight -= 1
                case SessionFailed():
                    raise RuntimeError(f"{session.id} failed: {event.message}")

    def _close(self, slot: int) -> None:
        self._sessions.pop(slot).leave()
        self._slots.clean(slot)
        self._runtime.clear(slot)
        self._slots.free(slot)
        self._admission.leave()
