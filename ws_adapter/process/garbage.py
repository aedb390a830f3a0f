"""The garbage collector's share of the event loop's time.

A unit leaves no reference cycles, but each session always has some thirty objects that wait for its next
unit. To the collector they are young: among 1,000 sessions each of its collections took 30 ms, for which all
of them waited. So objects are frozen soon after they were made, and looked at only now and then, all at once.
"""

import asyncio
import gc
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ws_adapter.process.clock import Clock

FREEZE_S: Final = 0.25
"""How often young objects are frozen."""

WHOLE_S: Final = 600.0
"""Between two collections of everything: each takes 0.1 s or more beside 1,000 sessions."""

_GROWTH: Final = 1.25
_SLACK: Final = 512 * 2**20
"""Everything is collected earlier if the process holds so many times the memory that it held behind the last
collection, and so many bytes more: whoever finds a way to make cycles does not fill the memory with them."""

_SMALL_OBJECT: Final = 512
"""Bytes of the largest object that Python puts into a block."""

_THRESHOLDS: Final = (20_000, 2, 25)
"""At the usual 700 objects the collector would run whenever two sessions begin."""


def held_bytes() -> int:
    """Return the memory of this process; where the system does not tell it, that of small objects at most."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return sys.getallocatedblocks() * _SMALL_OBJECT


class Garbage:
    """Keeps the collector from objects that are in use; for a process that has one event loop."""

    def __init__(self, clock: Clock, held_bytes: Callable[[], int] = held_bytes) -> None:
        """Collect everything that is there at the start; `held_bytes` tells how much memory is in use."""
        self._clock = clock
        self._held_bytes = held_bytes
        self._due = 0.0
        self._most = 0.0
        """Bytes at which everything is collected."""
        gc.set_threshold(*_THRESHOLDS)
        self._collect()

    def tend(self) -> None:
        """Freeze the young objects; collect everything if it is time."""
        if self._clock.now() >= self._due or self._held_bytes() > self._most:
            self._collect()
        else:
            gc.freeze()

    async def run(self) -> None:
        """Tend the garbage until cancelled."""
        try:
            while True:
                await asyncio.sleep(FREEZE_S)
                self.tend()
        finally:
            gc.unfreeze()

    def _collect(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._due = self._clock.now() + WHOLE_S
        self._most = _GROWTH * self._held_bytes() + _SLACK
