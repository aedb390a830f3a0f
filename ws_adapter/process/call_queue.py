"""Work of many connections that comes at once, interleaved with the work of all others."""

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from functools import partial
from typing import Final

PASSES: Final = 64
"""The approximate number of event loop passes for a burst: a longer queue takes more calls per pass."""


class CallQueue:
    """Spreads a burst of calls over passes of the event loop, so that none of them delays a session.

    A single call runs at once; of waiting ones, each pass runs one, or its share of a long queue. Used on the
    event loop.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_busy = False
        """Whether this pass has run its call."""

    def __len__(self) -> int:
        """Return the number of waiting calls."""
        return len(self._waiting)

    def run(self, call: Callable[[], None]) -> None:
        """Run a call in its turn, in the current context."""
        if self._is_busy:
            self._waiting.append(partial(copy_context().run, call))
            return
        self._is_busy = True
        asyncio.get_running_loop().call_soon(self._next)
        call()

    def _next(self) -> None:
        """Have the next pass run its calls."""
        if not self._waiting:
            self._is_busy = False
            return
        loop = asyncio.get_running_loop()
        for _ in range(1 + (len(self._waiting) - 1) // PASSES):
            loop.call_soon(self._waiting.popleft())  # each by itself: one that raises stops no other
        loop.call_soon(self._next)
