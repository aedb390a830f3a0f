"""Search for the largest number of sessions whose units meet their deadlines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from benchmarks.crowd.workload import CYCLE
from benchmarks.gpu_crowd.callers import UNIT_S, Crowd, Unit
from benchmarks.gpu_crowd.phases import Phase
from benchmarks.gpu_crowd.worker import Worker
from inference_service.interface.setups import Window, WindowMode

MOST_MISSED: Final = 0.01
MOST: Final = 512
HIGH, LOW = 1600, 1200
"""The high and the low watermark of the window, in tokens."""


@dataclass(frozen=True)
class SessionKind:
    """The kind of the sessions of a trial: with video or not, with a sliding window or not."""

    sees: bool
    slides: bool

    @property
    def name(self) -> str:
        """Its name in tables and files."""
        return f"{'video' if self.sees else 'audio'}, {'window' if self.slides else 'no window'}"

    @property
    def window(self) -> Window:
        """The window of its sessions."""
        return Window(WindowMode.BASIC, HIGH, LOW) if self.slides else Window()


@dataclass(frozen=True)
class Trial:
    """The results of one number of sessions."""

    sessions: int
    units: int
    missed: float
    """The share of units without a complete answer within a second of their due time."""
    p50_ms: float
    p99_ms: float
    first_p50_ms: float
    """The median time to the first event of an answer."""
    text_tokens: float
    speech_tokens: float
    """The average number of speech tokens of a speaking unit."""
    phases: Sequence[Phase] = ()

    @property
    def is_good(self) -> bool:
        """Whether less than 1 % of the units were late."""
        return self.missed < MOST_MISSED


def trial(sessions: int, units: list[Unit]) -> Trial:
    """Return the trial of these units."""
    late = [unit.done - unit.due for unit in units]
    first = [unit.first - unit.due for unit in units]
    spoke = [unit for unit in units if unit.speaks and unit.speech_tokens]
    return Trial(
        sessions,
        len(units),
        sum(it > UNIT_S for it in late) / len(units),
        _percentile_ms(late, 50),
        _percentile_ms(late, 99),
        _percentile_ms(first, 50),
        float(np.mean([unit.text_tokens for unit in spoke])) if spoke else 0.0,
        float(np.mean([unit.speech_tokens for unit in spoke])) if spoke else 0.0,
    )


def _percentile_ms(seconds: list[float], share: float) -> float:
    """Return a percentile of times without interpolation, since some may be infinite."""
    return 1000 * float(np.percentile(seconds, share, method="higher"))


def run(worker: Worker, sessions: int, kind: SessionKind, *, seconds: float, aged: int, seed: int) -> Trial:
    """Run sessions for `seconds`, after a history of `aged` units each."""
    phases = np.random.default_rng(seed).integers(CYCLE, size=sessions).tolist()
    crowd = Crowd(worker, phases, kind.window, sees=kind.sees, seed=seed)
    try:
        crowd.age(aged)
        found = trial(sessions, crowd.converse(seconds))
        return replace(found, phases=worker.phases.means())
    finally:
        crowd.close()


def largest(
    attempt: Callable[[int], Trial],
    first: int,
    most: int,
    step: int,
    is_late: Callable[[], bool] = lambda: False,
) -> list[Trial]:
    """Search for the most sessions within the goal: double until a trial misses it, then bisect to `step`.

    Return all trials. The good trial with the most sessions is the last one, if any trial is good. `most` is
    the number of sessions that fit into memory. No trial begins once `is_late` returns true.
    """
    good: Trial | None = None
    bad, sessions = most + 1, min(first, most)
    trials: list[Trial] = []
    while sessions >= 1:
        trials.append(attempt(sessions))
        if trials[-1].is_good:
            good = trials[-1]
        else:
            bad = sessions
        held = good.sessions if good else 0
        if bad - held <= (step if held else 1) or held == most or is_late():
            break
        sessions = min(2 * held, most) if held and bad > most else (held + bad) // 2
    return [it for it in trials if it is not good] + ([good] if good else [])
