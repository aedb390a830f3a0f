"""Ends sessions whose key expires."""

from collections.abc import Callable
from typing import Final

from ws_adapter.access.http.access import Access
from ws_adapter.process.clock import Clock, Timer

CHECK_S: Final = 60.0
"""The longest interval in seconds between two checks of the wall clock, which the operator may change."""


class KeyExpiry:
    """Calls `end_sessions` whenever a key expires; one timer serves all keys."""

    def __init__(self, access: Access, clock: Clock, end_sessions: Callable[[], None]) -> None:
        self._access = access
        self._clock = clock
        self._end_sessions = end_sessions
        self._timer: Timer | None = None

    def check(self) -> None:
        """End the sessions of expired keys, and set the timer for the next expiry. Call this after each
        change of the keys."""
        self.stop()
        self._end_sessions()
        left_s = self._access.next_expiry()
        if left_s is not None:
            self._timer = self._clock.call_at(self._clock.now() + min(left_s, CHECK_S), self.check)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
