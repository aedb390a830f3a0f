"""A discrete-event simulation of one engine: frames arrive every 80 ms, and ticks run without pauses.

The engine's own scheduler and share select the rows of each tick. The length of a tick is assumed.
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
"""The standard deviation of a frame's arrival time."""
LIFE_S: Final = 240.0
"""The length of a conversation; then another one gets its slot."""
PROMPT_ROWS: Final = 200
"""The rows of the prompt of a new conversation: voice and role."""

Cost = Callable[[int, int], float]
"""A function of the number of frames and of prompt rows that returns the seconds of a tick."""


@dataclass
class Outcome:
    """The results of a simulation, in seconds. A frame is late if its latency is more than `FRAME_S`."""

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
class SlotState:
    """The state of a slot and of its conversation."""

    ends_at: float
    waiting: deque[float] = field(default_factory=deque)
    """The arrival times of waiting frames."""
    prompt: int = 0
    """The rows of its prompt that are not prefilled."""
    opened: float = 0.0


def simulate(sessions: int, seconds: float, cost: Cost, seed: int = 1) -> Outcome:
    """Simulate `sessions` concurrent conversations for `seconds`."""
    draw, outcome, budget = random.Random(seed), Outcome(), Runtime.budget
    slots = [SlotState(draw.random() * LIFE_S) for _ in range(sessions)]
    coming = [(draw.random() * FRAME_S, slot) for slot in range(sessions)]
    due = {slot: at for at, slot in coming}
    heapq.heapify(coming)
    share, now = Share(budget), 0.0
    while now < seconds:
        while coming and coming[0][0] <= now:
            at, slot = heapq.heappop(coming)
            due[slot] += FRAME_S
            heapq.heappush(coming, (max(at, due[slot] + draw.gauss(0, JITTER_S)), slot))
            _arrive(slots[slot], at)
        frames = [
            Request(slot, 1, state.waiting[0], decoding=False, due=state.waiting[0] + FRAME_S)
            for slot, state in enumerate(slots)
            if state.waiting and not state.prompt
        ]
        prompts = [
            Request(slot, state.prompt, state.opened, decoding=False)
            for slot, state in enumerate(slots)
            if state.prompt
        ]
        allowance = share.rows(units_wait=bool(frames))
        granted = schedule([*frames, *prompts], budget, allowance)
        if not granted:
            now = coming[0][0]
            continue
        heard = [it.session for it in granted if not slots[it.session].prompt]
        rows = sum(it.tokens for it in granted) - len(heard)
        spent = cost(len(heard), rows)
        now += spent
        for slot in heard:
            outcome.latencies.append(now - slots[slot].waiting.popleft())
        for it in granted:
            if it.session not in heard:
                slots[it.session].prompt -= it.tokens
        others = spent - cost(len(heard), 0)
        share.spend(spent - others, others, units_waited=bool(frames))
        outcome.ticks.append(spent)
        outcome.busy_s += spent
    outcome.ended_at = now
    return outcome


def _arrive(state: SlotState, at: float) -> None:
    """Queue a frame that arrived at `at`; begin the next conversation if the old one is over.

    A new conversation sends no frames until its prompt is prefilled.
    """
    if at >= state.ends_at:
        state.ends_at, state.opened, state.prompt = at + LIFE_S, at, PROMPT_ROWS
        state.waiting.clear()
    if not state.prompt:
        state.waiting.append(at)
