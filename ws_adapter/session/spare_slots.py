"""The order in which background work looks for idle slots."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ws_adapter.dispatch.base import Need


class _Queue:
    """The sessions with equal needs."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.waiting = 0


class SpareSlots:
    """Turns of sessions to look for a slot: one session at a time, in the order of arrival.

    A busy session cannot starve others, and two sessions never find the same free slot.
    """

    def __init__(self) -> None:
        self._queues: dict[Need, _Queue] = {}

    @asynccontextmanager
    async def turn(self, need: Need) -> AsyncIterator[None]:
        """Wait for the caller's turn, which lasts as long as the block."""
        queue = self._queues.setdefault(need, _Queue())
        queue.waiting += 1
        try:
            async with queue.lock:
                yield
        finally:
            queue.waiting -= 1
            if not queue.waiting:
                del self._queues[need]

    def are_wanted(self, need: Need) -> bool:
        """Return whether any session looks for such a slot, or waits for its turn."""
        return need in self._queues
