"""A queue that spreads a burst of calls, as of many lost connections, over passes of the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Final

PASSES: Final = 512
"""The approximate number of event loop passes for a burst: a longer queue runs more calls per pass."""


class CallQueue:
    """A queue of calls that spreads a burst over passes of the event loop, so that it delays no session.

    A single call runs at once. Each pass runs one waiting call, or more of a long queue. For the event loop's
    thread.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_busy = False
        """Whether this pass has already run a call."""

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return len(self._waiting)

    def run(self, call: Callable[[], None]) -> None:
        """Run a call now, or queue it, in the current context."""
        if self._is_busy:
            self._waiting.append(partial(copy_context().run, call))
            return
        self._is_busy = True
        asyncio.get_running_loop().call_soon(self._next)
        call()

    def _next(self) -> None:
        """Schedule the waiting calls of the next pass."""
        if not self._waiting:
            self._is_busy = False
            return
        loop = asyncio.get_running_loop()
        for _ in range(1 + (len(self._waiting) - 1) // PASSES):
            loop.call_soon(self._waiting.popleft())  # separately: an exception stops no other call
        loop.call_soon(self._next)
