"""Failover of a session to another worker: its journal, its bounds, and the units that wait meanwhile.

A session may move any number of times, unless it may be the cause of the losses. Input that was at two
workers when they were lost is sent to no third worker. A session that has lost `MOST_CRASHES` workers within
`CRASH_WINDOW_S` ends with the next loss.
"""

from collections import deque
from typing import Final

from msgspec import Struct

from antiphon.contract import Reason
from antiphon_service.semconv import FailoverOutcome
from ws_adapter.protocol.core.actions import Run, RunSegment
from ws_adapter.protocol.core.config import Mode
from ws_adapter.worker.convert import automatic_parts
from ws_adapter.worker.journal import Journal, PendingRewind, SavedJournal
from ws_adapter.worker.session_streams import SessionStreams

LOSSES: Final = frozenset(
    {Reason.WORKER_LOST, Reason.ENGINE_FATAL, Reason.UNIT_TIMEOUT, Reason.DRAINING},
)
"""Reasons that concern the whole worker, not this session alone."""

MOST_CRASHES: Final = 2
"""The most workers that a session may lose within `CRASH_WINDOW_S` and still move."""

CRASH_WINDOW_S: Final = 600.0

LONGEST_S: Final = 30.0
"""The seconds within which another worker must have replayed the journal."""

HAND_OVER_S: Final = 5.0
"""The seconds that a draining worker may take to finish its units."""

MOST_ATTEMPTS: Final = 5
"""The most slots that a session tries in one failover."""

ATTEMPT_S: Final = 0.25
"""The pause after the second failed attempt, in seconds; it grows by as much with each further one. After the
first there is no pause, so that no new session takes the slot."""


class SavedFailover(Struct, frozen=True):
    """The failover state of a session, with which another adapter continues."""

    journal: SavedJournal
    mode: Mode
    """Mode in which the worker serves it."""
    pool: str
    crashes_ago: tuple[float, ...]
    """The ages in seconds of the losses within `CRASH_WINDOW_S`."""
    suspect: int
    written: int


class Failover:
    """The failover state of one session."""

    def __init__(self, journal: Journal) -> None:
        self.journal: Final = journal
        self.is_leaving = False
        """Whether the worker gets no more units, so that the session can move."""
        self.reason: Reason | None = None
        """The reason of the failover; None without one."""
        self.since = 0.0
        """The time at which the failover began."""
        self._attempts = 0
        self._crashes: deque[float] = deque()
        self._suspect = 0
        """The newest unit that was at a worker when the worker was lost."""
        self._written = 0
        """The newest unit that the worker got."""

    @property
    def is_moving(self) -> bool:
        """Whether the session has no worker that takes its units."""
        return self.reason is not None

    @property
    def is_idle(self) -> bool:
        """Whether the worker has answered and closed all its units."""
        return self.journal.has_closed(self._written)

    # --------------------------------------------------------------------------- at another adapter

    def save(self, mode: Mode, pool: str, now: float) -> SavedFailover:
        """Return the state."""
        ago = tuple(now - at for at in self._crashes)
        return SavedFailover(self.journal.save(), mode, pool, ago, self._suspect, self._written)

    def restore(self, saved: SavedFailover, now: float, *, was_handed_over: bool) -> FailoverOutcome | None:
        """Continue from a saved state with a failover. Return why the session ends; None if it moves.

        The death of its adapter counts as the loss of a worker, unless the session was handed over.
        """
        self._crashes.extend(now - ago for ago in saved.crashes_ago)
        self._suspect, self._written = saved.suspect, saved.written
        return self.lost(Reason.DRAINING if was_handed_over else Reason.WORKER_LOST, now)

    # --------------------------------------------------------------------------------------- units

    def run(self, streams: SessionStreams | None, run: Run, traceparent: str, prefill: bytes | None) -> None:
        """Keep a unit in the journal, and give it to the worker unless the session moves."""
        parts = automatic_parts(run, traceparent, prefill)
        self.journal.sent(run.unit, parts, begins=isinstance(run, RunSegment) and run.begins)
        if streams is not None and not (self.is_moving or self.is_leaving):
            self._written = run.unit
            streams.write_unit(run.unit, parts)
            self.journal.written(run.unit)

    def cancel(self, streams: SessionStreams | None, unit: int) -> None:
        """Cancel units up to `unit` that the worker has; while the session moves, do nothing."""
        last = min(unit, self._written)
        if streams is not None and last and not self.is_moving:
            streams.cancel(last)

    def rewind(self, streams: SessionStreams | None, unit: int, heard_samples: int | None) -> None:
        """Undo the model's output after `heard_samples` of a unit, None for all of its samples."""
        self.journal.rewinds.append(PendingRewind(unit, heard_samples))
        if streams is not None and not self.is_moving:
            streams.rewind(unit, heard_samples)

    # ---------------------------------------------------------------------------------------- moves

    def lost(self, reason: Reason, now: float) -> FailoverOutcome | None:
        """Handle a lost or draining worker. Return why the session ends; None if it moves."""
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
        """Cancel the move: give the worker the units that were held back."""
        self.is_leaving = False
        for unit, parts in self.journal.unanswered:
            if unit > self._written:
                self._written = unit
                streams.write_unit(unit, parts)

    def next_attempt_s(self) -> float | None:
        """Count a failed attempt; return the pause before the next one in seconds, None if there is none."""
        self._attempts += 1
        return (self._attempts - 1) * ATTEMPT_S if self._attempts < MOST_ATTEMPTS else None

    def go_on(self, streams: SessionStreams) -> list[int]:
        """Give the waiting units to a worker that has replayed the journal; return the units to close."""
        self.reason = None
        streams.journal = self.journal
        for order in self.journal.rewinds:
            streams.rewind(order.unit, order.heard_samples)
        for unit, parts in self.journal.unanswered:
            self._written = unit
            streams.write_unit(unit, parts)
        return self.journal.replayed()

    def _is_suspicious(self, now: float) -> bool:
        """Return whether the session may be the cause of its worker losses."""
        crashes = self._crashes
        while crashes and now - crashes[0] > CRASH_WINDOW_S:
            crashes.popleft()
        crashes.append(now)
        at_worker = [unit for unit, _ in self.journal.unanswered if unit <= self._written]
        was_sent_before = bool(at_worker) and at_worker[0] <= self._suspect
        self._suspect = max(at_worker, default=self._suspect)
        return was_sent_before or len(crashes) > MOST_CRASHES
