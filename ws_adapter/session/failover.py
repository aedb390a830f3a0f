"""Move of a session to another worker: its journal, its bounds, and the units that wait meanwhile.

A session may move again and again, but not because of what it sends itself: input that was at two workers
when they were lost goes to no third one, and a session that loses `MOST_CRASHES` workers in
`CRASH_WINDOW_S` does not survive the next loss.
"""

from collections import deque
from typing import Final

from msgspec import Struct

from antiphon.contract import Reason
from antiphon_service.semconv import FailoverOutcome
from ws_adapter.protocol.core.actions import Run, RunSegment
from ws_adapter.protocol.core.config import Mode
from ws_adapter.worker.convert import automatic_parts
from ws_adapter.worker.journal import Journal, SavedJournal, TakenBack
from ws_adapter.worker.session_streams import SessionStreams

LOSSES: Final = frozenset(
    {Reason.WORKER_LOST, Reason.ENGINE_FATAL, Reason.UNIT_TIMEOUT, Reason.DRAINING},
)
"""Ends of a session that are its worker's."""

MOST_CRASHES: Final = 2
"""Workers that a session may lose within `CRASH_WINDOW_S` and go on."""

CRASH_WINDOW_S: Final = 600.0

LONGEST_S: Final = 30.0
"""How long a session waits for another worker that has heard its journal."""

HAND_OVER_S: Final = 5.0
"""How long a worker that leaves may take for the units that it has."""

MOST_ATTEMPTS: Final = 5
"""Slots that a session tries in one failover."""

ATTEMPT_S: Final = 0.25
"""Pause behind a failed attempt, times their number: a worker that was cut off refuses many at once.
Behind the loss itself there is none, so that no newcomer gets in before."""


class SavedFailover(Struct, frozen=True):
    """The state of a session at its workers, with which another adapter goes on."""

    journal: SavedJournal
    mode: Mode
    """Mode in which the worker serves it."""
    pool: str
    crashes_ago: tuple[float, ...]
    """Seconds since the losses that count."""
    suspect: int
    written: int


class Failover:
    """State of one session at one worker after another."""

    def __init__(self, journal: Journal) -> None:
        self.journal: Final = journal
        self.is_leaving = False
        """Whether the worker gets no further unit, so that the session can move."""
        self.reason: Reason | None = None
        """Why the session moves; None while it does not."""
        self.since = 0.0
        """When that began."""
        self._attempts = 0
        self._crashes: deque[float] = deque()
        self._suspect = 0
        """Newest unit that was at a worker when it was lost."""
        self._written = 0
        """Newest unit that the worker got."""

    @property
    def is_moving(self) -> bool:
        """Whether the session has no worker that hears its units."""
        return self.reason is not None

    @property
    def is_idle(self) -> bool:
        """Whether the worker has answered and closed all units that it got."""
        return self.journal.owes_nothing(self._written)

    # --------------------------------------------------------------------------- at another adapter

    def save(self, mode: Mode, pool: str, now: float) -> SavedFailover:
        """Return the state."""
        ago = tuple(now - at for at in self._crashes)
        return SavedFailover(self.journal.save(), mode, pool, ago, self._suspect, self._written)

    def restore(self, saved: SavedFailover, now: float, *, was_handed_over: bool) -> FailoverOutcome | None:
        """Go on from a saved state: the session moves.

        The death of its adapter counts as the loss of a worker, unless the session was handed over. Return
        why the session ends with it; None if it moves.
        """
        self._crashes.extend(now - ago for ago in saved.crashes_ago)
        self._suspect, self._written = saved.suspect, saved.written
        return self.lost(Reason.DRAINING if was_handed_over else Reason.WORKER_LOST, now)

    # --------------------------------------------------------------------------------------- units

    def run(self, streams: SessionStreams | None, run: Run, traceparent: str, prefill: bytes | None) -> None:
        """Keep a unit, and give it to the worker unless the session moves."""
        parts = automatic_parts(run, traceparent, prefill)
        self.journal.sent(run.unit, parts, begins=isinstance(run, RunSegment) and run.begins)
        if streams is not None and not (self.is_moving or self.is_leaving):
            self._written = run.unit
            streams.write_unit(run.unit, parts)
            self.journal.written(run.unit)

    def cancel(self, streams: SessionStreams | None, unit: int) -> None:
        """End units; of a session that moves, the dialect is asked again once it goes on."""
        last = min(unit, self._written)
        if streams is not None and last and not self.is_moving:
            streams.cancel(last)

    def rewind(self, streams: SessionStreams | None, unit: int, heard_samples: int | None) -> None:
        """Take back what was said after so many samples of a unit."""
        self.journal.rewinds.append(TakenBack(unit, heard_samples))
        if streams is not None and not self.is_moving:
            streams.rewind(unit, heard_samples)

    # ---------------------------------------------------------------------------------------- moves

    def lost(self, reason: Reason, now: float) -> FailoverOutcome | None:
        """The worker is lost, or leaves. Return why the session ends with it; None if it moves."""
        if not self.journal.suffices:
            return FailoverOutcome.NO_JOURNAL
        if reason is not Reason.DRAINING and self._is_suspicious(now):
            return FailoverOutcome.SUSPECT
        if self.reason is None:
            self.reason, self.since, self._attempts = reason, now, 0
        self.is_leaving = False
        self._written = 0
        return None

    def stay(self, streams: SessionStreams) -> None:
        """Do not leave the worker after all: give it the units that it did not get."""
        self.is_leaving = False
        for unit, parts in self.journal.unanswered:
            if unit > self._written:
                self._written = unit
                streams.write_unit(unit, parts)

    def next_attempt_s(self) -> float | None:
        """Count an attempt to get a slot; return after how many seconds there may be another one, None if
        there may not."""
        self._attempts += 1
        return (self._attempts - 1) * ATTEMPT_S if self._attempts < MOST_ATTEMPTS else None

    def go_on(self, streams: SessionStreams) -> list[int]:
        """Give a worker that has heard the journal what waits; return units that are to be closed."""
        self.reason = None
        streams.journal = self.journal
        for order in self.journal.rewinds:
            streams.rewind(order.unit, order.heard_samples)
        for unit, parts in self.journal.unanswered:
            self._written = unit
            streams.write_unit(unit, parts)
        return self.journal.replayed()

    def _is_suspicious(self, now: float) -> bool:
        """Return whether the session may be what its workers are lost by."""
        crashes = self._crashes
        while crashes and now - crashes[0] > CRASH_WINDOW_S:
            crashes.popleft()
        crashes.append(now)
        at_worker = [unit for unit, _ in self.journal.unanswered if unit <= self._written]
        was_sent_before = bool(at_worker) and at_worker[0] <= self._suspect
        self._suspect = max(at_worker, default=self._suspect)
        return was_sent_before or len(crashes) > MOST_CRASHES
