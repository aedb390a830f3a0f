"""The way of a unit through a session: cut, wait, run at the worker, answered."""

from collections.abc import Callable

from ws_adapter.dialects.actions import Action, CancelUnits, RunUnit, Send, Withdraw
from ws_adapter.dialects.answers import Answers
from ws_adapter.dialects.backlog import Backlog
from ws_adapter.dialects.errors import Verdict
from ws_adapter.dialects.limits import Limits
from ws_adapter.dialects.silence import SilenceTail
from ws_adapter.dialects.units import Append, Unit, UnitCutter
from ws_adapter.dialects.worker import Finalized, Piece, Prefilled, Ready, Tokens, UnitDone


class UnitFlow:
    """Takes appends in and gives actions out. Input that comes before `begin` is held.

    At most `max_units_in_flight` units are at the worker, counted until they are finalised; the others wait
    here. While `congested`, because the client does not read, no unit is given to the worker.
    """

    def __init__(self, session_id: str, limits: Limits, new_id: Callable[[str], str]) -> None:
        self.congested = False
        self._tail = SilenceTail(limits.silence_tail_units)
        self._cutter = UnitCutter(limits.unit_flush_s)
        self._backlog = Backlog(limits.max_lag_s, limits.max_waiting_units, limits.max_waiting_bytes)
        self._answers = Answers(session_id, self._tail, new_id)
        self._window = 0
        self._unfinalized: set[int] = set()
        self._last_number = 0

    @property
    def verdict(self) -> Verdict | None:
        """Why the session cannot go on; None while it can."""
        return self._answers.verdict

    @property
    def tokens(self) -> Tokens:
        """Tokens of the session so far."""
        return self._answers.tokens

    @property
    def deadline(self) -> float | None:
        """When `tick` is due next."""
        if not self._window:
            return None
        silence_at = self._tail.due_at if self._has_room() and not self._backlog else None
        times = [at for at in (self._cutter.flush_at, silence_at) if at is not None]
        return min(times, default=None)

    def begin(self, ready: Ready, now: float) -> list[Action]:
        """The worker is ready: what was held counts as if it had just arrived."""
        self._window = max(1, ready.max_units_in_flight)
        self._answers.begin(ready)
        self._cutter.restamp(now)
        self._backlog.restamp(now)
        self._tail.restamp(now)
        return self.advance(now)

    def append(self, append: Append, now: float) -> list[Action]:
        """Input came."""
        actions: list[Action] = []
        units = self._cutter.append(append, now)
        self._tail.appended(append.seconds, now)
        if append.force_listen:
            self._backlog.force_listen()
            actions += self._interrupt()
        self._put(units)
        return actions + self.advance(now)

    def signal(self, signal: Prefilled | Piece | UnitDone | Finalized, now: float) -> list[Action]:
        """The worker has news of a unit."""
        match signal:
            case Prefilled():
                self._answers.prefilled(signal)
            case Piece():
                self._answers.piece(signal)
            case UnitDone():
                self._answers.done(signal)
                return list(self._answers.collect())
            case Finalized():
                self._unfinalized.discard(signal.unit)
                return self.advance(now)
        return []

    def tick(self, now: float) -> list[Action]:
        """Time passed: pads and runs what is carried, and feeds silence, if they are due."""
        if not self._window:
            return []
        actions: list[Action] = []
        flush_at = self._cutter.flush_at
        if flush_at is not None and now >= flush_at:
            self._put(self._cutter.flush(now))
            actions += self.advance(now)
        silence_at = self._tail.due_at
        if silence_at is not None and now >= silence_at and self._has_room() and not self._backlog:
            self._tail.fed(now)
            self._put([self._cutter.silence(now)])
            actions += self.advance(now)
        return actions

    def withdrawn(self, sends: list[Send]) -> list[Action]:
        """What an interruption took back before it was sent."""
        return list(self._answers.withdrawn(sends))

    def advance(self, now: float) -> list[Action]:
        """Gives waiting units to the worker while it has room, and answers those that were dropped."""
        runs: list[Action] = []
        while self._has_room():
            unit, stale = self._backlog.take(now)
            self._answers.drop(stale)
            if unit is None:
                break
            self._last_number += 1
            self._unfinalized.add(self._last_number)
            self._answers.started(unit, self._last_number)
            runs.append(RunUnit(self._last_number, unit.audio, unit.force_listen))
        return [*self._answers.collect(), *runs] if self._window else []

    def _has_room(self) -> bool:
        return len(self._unfinalized) < self._window and not self.congested and self.verdict is None

    def _put(self, units: list[Unit]) -> None:
        self._answers.expect(units)
        dropped = self._backlog.put(units)
        if self._window:
            self._answers.drop(dropped)
        else:
            self._answers.forget(dropped)

    def _interrupt(self) -> list[Action]:
        if self._answers.response_id is None:
            return []
        actions: list[Action] = [Withdraw(self._answers.response_id)]
        last = self._answers.mute()
        if last is not None:
            actions.append(CancelUnits(last))
        return actions
