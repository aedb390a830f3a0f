"""The garbage collector's share of the event loop's time.

A unit leaves no reference cycles, but each session always has some thirty objects that wait for its next
unit. To the collector they are young: among 1,000 sessions its collections took 30 ms again and again, for
which all of them waited. So objects are frozen soon after they were made. A connection that has ended leaves
up to 300 objects in cycles: everything is collected behind so many of them that it is worth a long pause.
"""

import asyncio
import gc
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple, Protocol

FREEZE_S: Final = 0.25
"""How often young objects are frozen."""

MOST_LOST: Final = 1_000
"""Connections that end between two collections of everything: they leave some 40 MiB. A collection takes
20 ms, and 0.3 s beside 1,000 sessions."""

GROWTH: Final = 2
MORE_OBJECTS: Final = 1_000_000
MORE_BYTES: Final = 512 * 2**20
"""Everything is collected earlier if the process has so many times what it had behind the last collection,
and so much more: whoever finds another way to make cycles does not fill the memory with them."""

_THRESHOLDS: Final = (4_000, 1_000, 1_000)
"""Between two freezes only the newest objects are looked at, in parts that take 2 ms."""


class Held(NamedTuple):
    """What the process has."""

    objects: int
    """Blocks of Python's own allocator: objects of up to 512 bytes."""
    resident_bytes: int
    """Memory; 0 where the system does not tell it."""

    @classmethod
    def now(cls) -> "Held":
        """Return what it has at this moment."""
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
        except OSError:
            pages = 0
        return cls(sys.getallocatedblocks(), pages * mmap.PAGESIZE)


class Server(Protocol):
    """The server in the process."""

    @property
    def lost_connections(self) -> int:
        """Connections that have ended so far."""

    @property
    def journal_bytes(self) -> int:
        """Memory of journals, which are no garbage."""


class Garbage:
    """Keeps the collector from objects that are in use; for a process that has one event loop."""

    def __init__(self, server: Server, held: Callable[[], Held] = Held.now) -> None:
        """Collect everything that is there at the start; `held` tells what the process has."""
        self._server = server
        self._held = held
        self._most_lost = 0
        self._most = Held(0, 0)
        """What there may be beside journals before everything is collected."""
        gc.set_threshold(*_THRESHOLDS)
        self._collect()

    def tend(self) -> None:
        """Freeze the young objects; collect everything if there may be much garbage."""
        held, most = self._held(), self._most
        most_bytes = most.resident_bytes + self._server.journal_bytes
        has_grown = held.objects > most.objects or held.resident_bytes > most_bytes
        if has_grown or self._server.lost_connections >= self._most_lost:
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
        objects, resident_bytes = self._held()
        others = max(0, resident_bytes - self._server.journal_bytes)
        self._most = Held(GROWTH * objects + MORE_OBJECTS, GROWTH * others + MORE_BYTES)
        self._most_lost = self._server.lost_connections + MOST_LOST
