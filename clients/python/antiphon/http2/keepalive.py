"""Whether the other side of a connection is still there."""

import asyncio
from collections.abc import Callable
from typing import Final

KEEPALIVE_S: Final = 10.0
"""After so long a silence the other side is asked whether it is there."""

KEEPALIVE_TIMEOUT_S: Final = 5.0
"""How long it may take to say anything then."""


class Keepalive:
    """Between `begin` and `stop` it calls `ask` after a silence, and `lost` when nothing comes after that.

    Whoever reads sets `heard_at`, the time of the event loop. Nothing is asked while `is_needed` says no.
    """

    def __init__(
        self, is_needed: Callable[[], bool], ask: Callable[[], None], lost: Callable[[float], None]
    ) -> None:
        """`lost` is told for how many seconds nothing was heard."""
        self._loop = asyncio.get_running_loop()
        self.heard_at = self._loop.time()
        self._is_needed = is_needed
        self._ask = ask
        self._lost = lost
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """The connection is there."""
        self.heard_at = self._loop.time()
        self._timer = self._loop.call_later(KEEPALIVE_S, self._look)

    def stop(self) -> None:
        """Nobody is asked any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        silent_s = self._loop.time() - self.heard_at
        if silent_s < KEEPALIVE_S:
            self._timer = self._loop.call_later(KEEPALIVE_S - silent_s, self._look)
        elif not self._is_needed():
            self._timer = self._loop.call_later(KEEPALIVE_S, self._look)
        else:
            self._timer = self._loop.call_later(KEEPALIVE_TIMEOUT_S, self._insist, self._loop.time())
            self._ask()

    def _insist(self, asked_at: float) -> None:
        if self.heard_at >= asked_at:
            self._look()
        else:
            self._lost(self._loop.time() - self.heard_at)
