"""The way of a unit through a session: cut, wait, run at the worker, answered."""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from ws_adapter.protocol.core.actions import CancelUnits, RunUnit, Withdraw
from ws_adapter.protocol.core.answer import Answer, Unit
from ws_adapter.protocol.core.signals import Finalized, Piece, Prefilled, Ready, UnitDone
from ws_adapter.protocol.duplex.answers import Answers
from ws_adapter.protocol.duplex.input import Append, SilenceTail, UnitCutter
from ws_adapter.protocol.wire.limits import MOST_AT_WORKER, Limits

Step: TypeAlias = Answer | RunUnit | CancelUnits | Withdraw


class UnitFlow:
    """Takes appends in and gives steps out. Input that comes before `begin` is held.

    At most `max_units_in_flight` units are at the worker, counted until they are finalised; the others wait
    here. While `congested`, because the client does not read, no unit is given to the worker.
    """

    def __init__(self, limits: Limits, new_token: Callable[[], str]) -> None:
        self.congested = False
        self._tail = SilenceTail(limits.silence_tail_units)
        self._cutter = UnitCutter(limits.unit_flush_s)
        self._backlog = Backlog(limits.max_lag_s, limits.max_waiting_units, limits.max_waiting_bytes)
        self.answers = Answers(self._tail, new_token)
        self._window = 0
        self._unfinalized: dict[int, int] = {}
        """Bytes of each unit at the worker."""
        self._last_number = 0
        self._last_cancelled = 0

    @property
    def held_bytes(self) -> int:
        """Input that is carried or waits here, or is at the worker."""
        return self._cutter.size + self._backlog.bytes + sum(self._unfinalized.values())

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
        self.answers.begin(ready)
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
                self.answers.prefilled(signal)
            case Piece():
                if self.answers.piece(signal):
                    return self._cancel()
            case UnitDone():
                self.answers.done(signal)
                return list(self.answers.collect())
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

    def advance(self, now: float) -> list[Step]:
        """Gives waiting units to the worker while it has room, and answers those that were dropped."""
        runs: list[Step] = []
        while self._has_room():
            unit = self._backlog.take(now)
            if unit is None:
                break
            self._last_number += 1
            self._unfinalized[self._last_number] = _size(unit)
            self.answers.started(unit, self._last_number)
            slices = unit.max_slice_nums if unit.frames else None
            runs.append(
                RunUnit(self._last_number, unit.audio, unit.force_listen, unit.frames, slices, unit.ready_at)
            )
        return [*self.answers.collect(), *runs] if self._window else []

    @property
    def _flush_at(self) -> float | None:
        is_speaking = self.answers.response_id is not None
        return self._cutter.late_at if is_speaking else self._cutter.flush_at

    def _has_room(self) -> bool:
        return len(self._unfinalized) < self._window and not self.congested and self.answers.verdict is None

    def _put(self, units: list[Unit]) -> None:
        self.answers.expect(units)
        if any(unit.is_dropped and unit.force_listen for unit in units):
            self._cutter.force_next()
        self._backlog.put([unit for unit in units if not unit.is_dropped])
        if not self._window:
            self.answers.forget_dropped()

    def _interrupt(self) -> list[Step]:
        """Silences the open response, or the one that a unit at the worker is about to open."""
        actions: list[Step] = []
        if self.answers.response_id is not None:
            actions.append(Withdraw(self.answers.response_id))
        self.answers.mute()
        return actions + self._cancel()

    def _cancel(self) -> list[Step]:
        """Stops what the model says to nobody, each unit once."""
        last = self.answers.muted_speech
        if last is None or last <= self._last_cancelled:
            return []
        self._last_cancelled = last
        return [CancelUnits(last)]


class Backlog:
    """Waiting units in input order, bounded in number and bytes.

    A unit is dropped if a newer append waits behind it and it has waited longer than `max_lag_s`, checked
    when a unit is taken; and at once, oldest first, beyond `max_units` or `max_bytes`. Units of the newest
    append never drop each other. `force_listen` of a dropped unit moves to the next one.
    """

    def __init__(self, max_lag_s: float, max_units: int, max_bytes: int) -> None:
        self._max_lag_s = max_lag_s
        self._max_units = max_units
        self._max_bytes = max_bytes
        self.bytes = 0
        """Of the units that wait."""
        self._units: deque[Unit] = deque()

    def __len__(self) -> int:
        return len(self._units)

    def put(self, units: list[Unit]) -> None:
        """Adds the units of one append."""
        self._units.extend(units)
        self.bytes += sum(map(_size, units))
        while self._is_over() and self._is_superseded(self._units[0]):
            self._drop()

    def take(self, now: float) -> Unit | None:
        """The next unit to run, None if none waits."""
        while self._units:
            head = self._units[0]
            if now - head.ready_at > self._max_lag_s and self._is_superseded(head):
                self._drop()
                continue
            self.bytes -= _size(head)
            return self._units.popleft()
        return None

    def force_listen(self) -> None:
        """Every unit that waits now will run with `force_listen`."""
        for unit in self._units:
            unit.force_listen = True

    def force_next(self) -> bool:
        """The unit that waits longest will run with `force_listen`; False if none waits."""
        if self._units:
            self._units[0].force_listen = True
        return bool(self._units)

    def restamp(self, now: float) -> None:
        """Counts every unit's wait from `now`, for input that was held."""
        for unit in self._units:
            unit.ready_at = now

    def _is_over(self) -> bool:
        return len(self._units) > self._max_units or self.bytes > self._max_bytes

    def _is_superseded(self, unit: Unit) -> bool:
        return unit.append < self._units[-1].append

    def _drop(self) -> None:
        unit = self._units.popleft()
        unit.is_dropped = True
        self.bytes -= _size(unit)
        if unit.force_listen:
            self._units[0].force_listen = True


def _size(unit: Unit) -> int:
    """Bytes of its input."""
    return len(unit.audio) + sum(map(len, unit.frames))
