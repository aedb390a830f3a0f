"""A watchdog that detects a hanging engine."""

import asyncio
from collections.abc import Callable
from typing import Protocol

_PERIOD_S = 0.5


class WatchedEngine(Protocol):
    """The watched engine."""

    @property
    def busy_since(self) -> float | None:
        """Start of the current step by any clock; None while the engine waits."""


class Watchdog:
    """A watchdog of the steps of an engine; `limit_s` is the limit of one step in seconds.

    The time between two calls of `check` counts as at most two periods, because a stopped process or a busy
    event loop is no evidence against the engine.
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
        """Call `on_hang` once when the engine hangs."""
        while not self.check():  # noqa: ASYNC110 (a step that never ends sets no event)
            await asyncio.sleep(self._period_s)
        on_hang()
