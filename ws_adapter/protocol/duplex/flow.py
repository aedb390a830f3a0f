"""The way of a unit through a session: cut, wait, run at the worker, answered."""

from collections.abc import Callable
from typing import TypeAlias

from ws_adapter.protocol.core.actions import CancelUnits, RunUnit, Withdraw
from ws_adapter.protocol.core.signals import Finalized, Piece, Prefilled, Ready, Tokens, UnitDone
from ws_adapter.protocol.core.silence import SilenceTail
from ws_adapter.protocol.duplex.answers import Answer, Answers
from ws_adapter.protocol.duplex.backlog import Backlog
from ws_adapter.protocol.duplex.input import Append, Unit, UnitCutter
from ws_adapter.protocol.wire.errors import Verdict
from ws_adapter.protocol.wire.limits import MOST_AT_WORKER, Limits

Step: TypeAlias = Answer | RunUnit | CancelUnits | Withdraw


class UnitFlow:
    """Takes appends in and gives steps out. Input that comes before `begin` is held.

    At most `max_units_in_flight` units are at the worker, counted until they are finalised; the others wait
    here. While `congested`, because the client does not read, no unit is given to the worker.
    """

    def __init__(self, limits: Limits, new_id: Callable[[str], str]) -> None:
        self.congested = False
        self._tail = SilenceTail(limits.silence_tail_units)
        self._cutter = UnitCutter(limits.unit_flush_s)
        self._backlog = Backlog(limits.max_lag_s, limits.max_waiting_units, limits.max_waiting_bytes)
        self._answers = Answers(self._tail, new_id)
        self._window = 0
        self._unfinalized: dict[int, int] = {}
        """Bytes of each unit at the worker."""
        self._last_number = 0
        self._last_cancelled = 0

    @property
    def verdict(self) -> Verdict | None:
        """Why the session cannot go on; None while it can."""
        return self._answers.verdict

    @property
    def tokens(self) -> Tokens:
        """Tokens of the session so far."""
        return self._answers.tokens

    @property
    def held_bytes(self) -> int:
        """Input that is carried or waits here, or is at the worker."""
        return self._cutter.size + self._backlog.size + sum(self._unfinalized.values())

    @property
    def deadline(self) -> float | None:
        """When `tick` is due next."""
        if not self._window:
            return None
        flush_at = self._flush_at
        silence_at = self._tail.due_at if self._has_room() and not self._backlog else None
        if flush_at is None or silence_at is None:
            return silence_at if flush_at is None else flush_at
        return min(flush_at, silence_at)

    def begin(self, ready: Ready, now: float) -> list[Step]:
        """The worker is ready: what was held counts as if it had just arrived."""
        self._window = min(max(1, ready.max_units_in_flight), MOST_AT_WORKER)
        self._answers.begin(ready)
        self._cutter.restamp(now)
        self._backlog.restamp(now)
        self._tail.restamp(now)
        return self.advance(now)

    def append(self, append: Append, now: float) -> list[Step]:
        """Input came."""
        actions: list[Step] = []
        units = self._cutter.append(append, now)
        self._tail.appended(append.seconds, now)
        if append.force_listen:
            self._backlog.force_listen()
            actions += self._interrupt()
        self._put(units)
        return actions + self.advance(now)

    def signal(self, signal: Prefilled | Piece | UnitDone | Finalized, now: float) -> list[Step]:
        """The worker has news of a unit."""
        match signal:
            case Prefilled():
                self._answers.prefilled(signal)
            case Piece():
                if self._answers.piece(signal):
                    return self._cancel()
            case UnitDone():
                self._answers.done(signal)
                return list(self._answers.collect())
            case Finalized():
                self._unfinalized.pop(signal.unit, None)
                return self.advance(now)
        return []

    def tick(self, now: float) -> list[Step]:
        """Time passed: pads and runs what is carried, and feeds silence, if they are due."""
        if not self._window:
            return []
        actions: list[Step] = []
        flush_at = self._flush_at
        if flush_at is not None and now >= flush_at:
            self._put(self._cutter.flush(now))
            actions += self.advance(now)
        silence_at = self._tail.due_at
        if silence_at is not None and now >= silence_at and self._has_room() and not self._backlog:
            self._tail.fed(now)
            self._put([self._cutter.silence(now)])
            actions += self.advance(now)
        return actions

    def hold_frame(self, frame: bytes) -> None:
        """Keeps a picture for the next unit."""
        self._cutter.hold_frame(frame)

    def force_next(self) -> None:
        """The next unit to run listens."""
        if not self._backlog.force_next():
            self._cutter.force_next()

    def silenced(self, answer: Answer, is_continued: bool) -> Answer:
        """What becomes of an answer that an interruption took back before all of it was sent."""
        return self._answers.silenced(answer, is_continued)

    def advance(self, now: float) -> list[Step]:
        """Gives waiting units to the worker while it has room, and answers those that were dropped."""
        runs: list[Step] = []
        while self._has_room():
            unit, stale = self._backlog.take(now)
            self._answers.drop(stale)
            if unit is None:
                break
            self._last_number += 1
            self._unfinalized[self._last_number] = unit.size
            self._answers.started(unit, self._last_number)
            slices = unit.max_slice_nums if unit.frames else None
            runs.append(
                RunUnit(self._last_number, unit.audio, unit.force_listen, unit.frames, slices, unit.ready_at)
            )
        return [*self._answers.collect(), *runs] if self._window else []

    @property
    def _flush_at(self) -> float | None:
        return self._cutter.flush_at(is_speaking=self._answers.response_id is not None)

    def _has_room(self) -> bool:
        return len(self._unfinalized) < self._window and not self.congested and self.verdict is None

    def _put(self, units: list[Unit]) -> None:
        self._answers.expect(units)
        undecoded = [unit for unit in units if unit.is_undecoded]
        if any(unit.force_listen for unit in undecoded):
            self._cutter.force_next()
        dropped = undecoded + self._backlog.put([unit for unit in units if not unit.is_undecoded])
        if self._window:
            self._answers.drop(dropped)
        else:
            self._answers.forget(dropped)

    def _interrupt(self) -> list[Step]:
        """Silences the open response, or the one that a unit at the worker is about to open."""
        actions: list[Step] = []
        if self._answers.response_id is not None:
            actions.append(Withdraw(self._answers.response_id))
        self._answers.mute()
        return actions + self._cancel()

    def _cancel(self) -> list[Step]:
        """Stops what the model says to nobody, each unit once."""
        last = self._answers.muted_speech
        if last is None or last <= self._last_cancelled:
            return []
        self._last_cancelled = last
        return [CancelUnits(last)]
