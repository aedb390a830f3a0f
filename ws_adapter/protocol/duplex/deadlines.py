"""Timers that end a full-duplex session unless an event stops them."""

from typing import Final

from ws_adapter.protocol.core.blobs import ago
from ws_adapter.protocol.duplex.saved import SavedDeadlines
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import Verdict, timed_out
from ws_adapter.protocol.wire.limits import Limits, is_due

IDLE_RECHECK_S: Final = 1.0
"""The interval of checking whether others want the slot of an idle session."""


class Deadlines:
    """Deadlines on the session's clock, None while no deadline is set."""

    def __init__(self, limits: Limits) -> None:
        self.limit_at: float | None = None
        """The session limit."""
        self.away_at: float | None = None
        """The time at which the draining worker ends the session."""
        self.init_at: float | None = None
        """The deadline for the settings from the client."""
        self.pause_at: float | None = None
        """The latest end of the pause."""
        self.idle_at: float | None = None
        """The deadline for input, if other sessions queue for a slot."""
        self.next_at: float | None = None
        """The earliest of the deadlines, `idle_at` excepted."""
        self._limits = limits
        self._pause_s = 0.0

    def granted(self, now: float) -> None:
        """Handle the session's slot."""
        if self._limits.session_limit_s:
            self.limit_at = now + self._limits.session_limit_s
        self.await_settings(now)

    def await_settings(self, now: float) -> None:
        """Start the timer for settings."""
        self.init_at = now + self._limits.init_timeout_s
        self._settle()

    def settings_accepted(self) -> None:
        """Stop the timer for settings."""
        self.init_at = None
        self._settle()

    def leaves(self, at: float | None) -> None:
        """Set the time at which the draining worker ends the session; None if the worker does not drain."""
        self.away_at = at
        self._settle()

    def paused(self, seconds: float, now: float) -> None:
        """Start a pause of so many seconds."""
        self._pause_s, self.pause_at, self.idle_at = seconds, now + seconds, None
        self._settle()

    def resumed(self, now: float) -> None:
        """End the pause."""
        self.pause_at, self.idle_at = None, now + self._limits.duplex_idle_s
        self._settle()

    def passed(self, now: float, opener: str, others_wait: bool) -> Verdict | None:
        """Return the verdict of a passed deadline, if any; `opener` is the event with the settings."""
        limits = self._limits
        if is_due(self.limit_at, now):
            text = "the session reached its time limit; open a new one"
            return timed_out("Session limit", limits.session_limit_s, text)
        if is_due(self.away_at, now):
            return errors.SERVER_SHUTDOWN
        if is_due(self.init_at, now):
            text = f"no {opener} came in time; connect again and send it at once"
            return timed_out("Prepare timeout", limits.init_timeout_s, text)
        if is_due(self.pause_at, now):
            return timed_out("Pause timeout", self._pause_s, "the pause was too long; open a new session")
        if is_due(self.idle_at, now):
            if others_wait:
                text = "the session was idle while others wait; open a new one"
                return timed_out("Idle timeout", limits.duplex_idle_s, text)
            self.idle_at = now + IDLE_RECHECK_S
        return None

    def save(self, now: float) -> SavedDeadlines:
        """Return the state of a running session, without the drain of its present worker."""
        return SavedDeadlines(
            ago(self.limit_at, now), ago(self.pause_at, now), ago(self.idle_at, now), self._pause_s
        )

    def restore(self, saved: SavedDeadlines, now: float) -> None:
        """Go on from a saved state."""
        self.limit_at = None if saved.limit_ago is None else now - saved.limit_ago
        self.pause_at = None if saved.pause_ago is None else now - saved.pause_ago
        self.idle_at = None if saved.idle_ago is None else now - saved.idle_ago
        self._pause_s = saved.pause_s
        self._settle()

    def _settle(self) -> None:
        times = (self.limit_at, self.away_at, self.init_at, self.pause_at)
        self.next_at = min((at for at in times if at is not None), default=None)
