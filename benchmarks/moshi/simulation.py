"""A discrete-event simulation of one engine: frames come every 80 ms, ticks follow one another.

Which rows a tick has is decided by the engine's own scheduler and share; how long it takes is assumed.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from inference_service.engine.batch.scheduler import Request, Share, schedule
from inference_service.engine.runtime import Runtime

FRAME_S: Final = 0.08
JITTER_S: Final = 0.005
"""Standard deviation of a frame's arrival."""
LIFE_S: Final = 240.0
"""A conversation lasts so long; then another one takes its slot."""
PROMPT_ROWS: Final = 200
"""Rows of the voice and the role of the next conversation."""

Cost = Callable[[int, int], float]
"""Seconds of a tick with so many frames and rows of prompts."""


@dataclass
class Outcome:
    """Result of a simulation, in seconds. A frame answered more than `FRAME_S` after it came is late."""

    latencies: list[float] = field(default_factory=list)
    ticks: list[float] = field(default_factory=list)
    busy_s: float = 0.0
    ended_at: float = 0.0

    def quantile(self, share: float) -> float:
        """Return this quantile of the latencies."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    @property
    def late(self) -> float:
        """The share of frames that were late."""
        return sum(it > FRAME_S for it in self.latencies) / len(self.latencies)

    @property
    def busy(self) -> float:
        """The share of the time in which the engine worked."""
        return self.busy_s / self.ended_at


@dataclass
class Seat:
    """A slot and the conversation that has it."""

    ends_at: float
    waiting: deque[float] = field(default_factory=deque)
    """Arrivals of frames that wait."""
    prompt: int = 0
    """Rows of its prompt that have not been read."""
    opened: float = 0.0


def simulate(sessions: int, seconds: float, cost: Cost, seed: int = 1) -> Outcome:
    """Return the results of concurrent conversations."""
    draw, outcome, budget = random.Random(seed), Outcome(), Runtime.budget
    seats = [Seat(draw.random() * LIFE_S) for _ in range(sessions)]
    coming = [(draw.random() * FRAME_S, slot) for slot in range(sessions)]
    due = {slot: at for at, slot in coming}
    heapq.heapify(coming)
    share, now = Share(budget), 0.0
    while now < seconds:
        while coming and coming[0][0] <= now:
            at, slot = heapq.heappop(coming)
            due[slot] += FRAME_S
            heapq.heappush(coming, (max(at, due[slot] + draw.gauss(0, JITTER_S)), slot))
            _arrive(seats[slot], at)
        frames = [
            Request(slot, 1, seat.waiting[0], decoding=False, due=seat.waiting[0] + FRAME_S)
            for slot, seat in enumerate(seats)
            if seat.waiting and not seat.prompt
        ]
        prompts = [
            Request(slot, seat.prompt, seat.opened, decoding=False)
            for slot, seat in enumerate(seats)
            if seat.prompt
        ]
        allowance = share.rows(units_wait=bool(frames))
        granted = schedule([*frames, *prompts], budget, allowance)
        if not granted:
            now = coming[0][0]
            continue
        heard = [it.session for it in granted if not seats[it.session].prompt]
        rows = sum(it.tokens for it in granted) - len(heard)
        spent = cost(len(heard), rows)
        now += spent
        for slot in heard:
            outcome.latencies.append(now - seats[slot].waiting.popleft())
        for it in granted:
            if it.session not in heard:
                seats[it.session].prompt -= it.tokens
        others = spent - cost(len(heard), 0)
        share.spend(spent - others, others, units_waited=bool(frames))
        outcome.ticks.append(spent)
        outcome.busy_s += spent
    outcome.ended_at = now
    return outcome


def _arrive(seat: Seat, at: float) -> None:
    """Let a frame come; the client of a new conversation waits until its prompt has been read."""
    if at >= seat.ends_at:
        seat.ends_at, seat.opened, seat.prompt = at + LIFE_S, at, PROMPT_ROWS
        seat.waiting.clear()
    if not seat.prompt:
        seat.waiting.append(at)
