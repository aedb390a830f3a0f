"""The garbage collector's share of the event loop's time.

A unit leaves no reference cycles, but each session always has some thirty objects that wait for its next
unit. To the collector they are young: among 1,000 sessions each of its collections took 30 ms, for which all
of them waited. So objects are frozen soon after they were made, and looked at only now and then, all at once.
"""

import asyncio
import gc
import sys
from typing import Final

from ws_adapter.process.clock import Clock

FREEZE_S: Final = 0.25
"""How often young objects are frozen."""

WHOLE_S: Final = 600.0
"""Between two collections of everything: each takes 0.1 s or more beside 1,000 sessions."""

_GROWTH: Final = 1.5
_SLACK: Final = 500_000
"""Everything is collected earlier if there are so many times the blocks of memory as behind the last
collection, and so many more: whoever finds a way to make cycles does not fill the memory with them."""

_THRESHOLDS: Final = (20_000, 2, 25)
"""At the usual 700 objects the collector would run whenever two sessions begin."""


class Garbage:
    """Keeps the collector from objects that are in use; for a process that has one event loop."""

    def __init__(self, clock: Clock) -> None:
        """Collect everything that is there at the start."""
        self._clock = clock
        self._due = 0.0
        self._most = 0.0
        """Blocks of memory at which everything is collected."""
        gc.set_threshold(*_THRESHOLDS)
        self._collect()

    def tend(self) -> None:
        """Freeze the young objects; collect everything if it is time."""
        if self._clock.now() >= self._due or sys.getallocatedblocks() > self._most:
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
        self._most = _GROWTH * sys.getallocatedblocks() + _SLACK
