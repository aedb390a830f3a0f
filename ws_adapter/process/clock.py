"""Clocks: a session takes its clock as an argument, so that a test can advance time."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """A scheduled callback."""

    def cancel(self) -> None:
        """Cancel the callback."""


class Clock(Protocol):
    """A monotonic clock in seconds."""

    def now(self) -> float:
        """Return the seconds since a fixed moment; never goes back."""

    def unix(self) -> float:
        """Return the Unix time in seconds; it may jump."""

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` once `now()` has reached `when`, never before this call has returned."""


class LoopClock:
    """The clock of the running event loop."""

    def __init__(self) -> None:
        self.now = time.monotonic  # the same as the loop's `time`, with one call less
        self.unix = time.time
        self.call_at = asyncio.get_running_loop().call_at


async def sleep(clock: Clock, seconds: float) -> None:
    """Wait until `seconds` have passed on `clock`."""
    over = asyncio.Event()
    timer = clock.call_at(clock.now() + seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()
