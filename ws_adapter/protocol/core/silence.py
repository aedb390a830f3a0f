"""Keeps time going for clients that send an utterance and then wait."""

from typing import Final

from ws_adapter.protocol.duplex.input import PERIOD_S

BURST_LEAD_S: Final = 1.5
"""A run of appends is a burst if it holds more than this much more audio than it took to arrive."""

BURST_WAIT_S: Final = 1.25
RUN_GAP_S: Final = 3.0
"""Appends closer together than this make one run; an append without such a neighbour is isolated."""


class SilenceTail:
    """Decides when a unit of silence is due after a burst or an isolated append.

    At most `limit` units while the model has not begun to speak, then until its turn ends; none with a
    `limit` of 0. All times are seconds of the session's clock.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._run_start = 0.0
        self._run_audio_s = 0.0
        self._run_appends = 0
        self._last_append: float | None = None
        self._last_fed: float | None = None
        self._fed = 0
        self._spoke = False
        self._over = False

    def appended(self, audio_s: float, now: float) -> None:
        """An append came: whatever tail was running stops, and a new one may follow."""
        if self._last_append is None or now - self._last_append >= RUN_GAP_S:
            self._run_start = now
            self._run_audio_s = 0.0
            self._run_appends = 0
        self._run_audio_s += audio_s
        self._run_appends += 1
        self._last_append = now
        self._last_fed = None
        self._fed = 0
        self._spoke = False
        # An append without audio only interrupts: there is nothing to answer.
        self._over = not audio_s

    def restamp(self, now: float) -> None:
        """Counts time from `now`, for input that was held: all of it has just arrived."""
        if self._last_append is not None:
            self._run_start = self._last_append = now

    def spoke(self) -> None:
        """The model spoke in a unit."""
        self._spoke = True

    def turn_ended(self, heard_everything: bool) -> None:
        """The model's turn ended; if it `heard_everything`, all real input, then that was the answer."""
        if self._spoke and heard_everything:
            self._over = True
        self._spoke = False

    def fed(self, now: float) -> None:
        """A unit of silence was fed."""
        self._last_fed = now
        self._fed += 1

    @property
    def due_at(self) -> float | None:
        """When the next unit of silence is due; None if none is."""
        if self._over or self._last_append is None or not self._limit:
            return None
        if self._fed >= self._limit and not self._spoke:
            return None
        if self._last_fed is not None:
            return self._last_fed + PERIOD_S
        if self._run_audio_s - (self._last_append - self._run_start) > BURST_LEAD_S:
            return self._last_append + BURST_WAIT_S
        if self._run_appends == 1:
            return self._last_append + RUN_GAP_S
        return None
