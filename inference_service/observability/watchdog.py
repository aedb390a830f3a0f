"""A watchdog that tells an engine that hangs from one that works."""

import asyncio
from collections.abc import Callable
from typing import Protocol

_PERIOD_S = 0.5


class WatchedEngine(Protocol):
    """The watched engine."""

    @property
    def busy_since(self) -> float | None:
        """When it began the step that it is at, on any clock; None while it waits."""


class Watchdog:
    """Watches one step of an engine after the other; `limit_s` is how long one may take.

    Time in which nobody called `check` counts as one period at most: a process that was stopped, or whose
    event loop had no time, says nothing about the engine.
    """

    def __init__(self, engine: WatchedEngine, clock: Callable[[], float], limit_s: float) -> None:
        self._engine = engine
        self._clock = clock
        self._limit_s = limit_s
        self._period_s = min(_PERIOD_S, limit_s / 4)
        self._step: float | None = None
        self._watched_s = 0.0
        self._checked = clock()

    def check(self) -> bool:
        """Return whether the engine hangs."""
        now, step = self._clock(), self._engine.busy_since
        passed, self._checked = now - self._checked, now
        if step is None or step != self._step:
            self._step, self._watched_s = step, 0.0
            return False
        self._watched_s += min(passed, 2 * self._period_s)
        return self._watched_s >= self._limit_s

    async def watch(self, on_hang: Callable[[], None]) -> None:
        """Call `on_hang` when it hangs, once."""
        while not self.check():  # noqa: ASYNC110 (a step that never ends sets no event)
            await asyncio.sleep(self._period_s)
        on_hang()
