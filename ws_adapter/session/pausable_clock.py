"""The clock of one session, which pauses while the session is detached."""

from collections.abc import Callable

from ws_adapter.process.clock import Clock, Timer


class PausableClock:
    """A clock that lags another one by the total time of its pauses."""

    def __init__(self, clock: Clock) -> None:
        self.unix = clock.unix
        self._clock = clock
        self._behind_s = 0.0
        self._paused_at: float | None = None

    @property
    def is_paused(self) -> bool:
        """Whether the clock is paused."""
        return self._paused_at is not None

    def now(self) -> float:
        now = self._paused_at if self._paused_at is not None else self._clock.now()
        return now - self._behind_s

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` at `when`, a time of this clock; a later pause does not delay the call."""
        return self._clock.call_at(when - self.now() + self._clock.now(), callback)

    def pause(self) -> None:
        """Pause. Harmless when repeated."""
        if self._paused_at is None:
            self._paused_at = self._clock.now()

    def go_on(self) -> None:
        """Continue from the time of the pause. Harmless when repeated."""
        if self._paused_at is not None:
            self._behind_s += self._clock.now() - self._paused_at
            self._paused_at = None
