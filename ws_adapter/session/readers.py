"""Threads for input that would cause head-of-line blocking on the event loop, such as minutes of audio."""

import asyncio
import heapq
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Final, TypeVar

READERS: Final = 2
"""The number of threads: one may read the longest chat while another reads a session's voice."""

T = TypeVar("T")


class Readers:
    """A pool of `READERS` threads for work of sessions off the event loop.

    Each session has one job at a time, so there are at most as many jobs as sessions. Jobs of sessions with a
    slot are done first, else in the order of arrival.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(READERS, "reader")
        self._free = READERS
        self._waiting: list[tuple[bool, int, asyncio.Future[None]]] = []
        self._numbers = count()

    async def do(self, work: Callable[[], T], *, has_slot: bool) -> T:
        """Run `work` on a thread; return its result or raise its error. Running work goes on when its
        caller is cancelled."""
        loop = asyncio.get_running_loop()
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = loop.create_future()
            heapq.heappush(self._waiting, (not has_slot, next(self._numbers), turn))
            try:
                await turn  # the turn brings a free thread
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._hand_on()
                raise
        running = loop.run_in_executor(self._threads, work)
        running.add_done_callback(lambda _: self._hand_on())
        return await asyncio.shield(running)

    def _hand_on(self) -> None:
        """Start the next job on a free thread."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1

    def close(self) -> None:
        """Accept no more work, without waiting for running work."""
        self._threads.shutdown(wait=False, cancel_futures=True)
