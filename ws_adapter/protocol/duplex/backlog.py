"""Units that wait for the worker: newest wins."""

from collections import deque

from ws_adapter.protocol.duplex.input import Unit


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
        self._units: deque[Unit] = deque()
        self._bytes = 0

    @property
    def size(self) -> int:
        """Bytes that wait."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._units)

    def put(self, units: list[Unit]) -> list[Unit]:
        """Adds the units of one append; returns those dropped to stay within the bounds."""
        self._units.extend(units)
        self._bytes += sum(unit.size for unit in units)
        dropped = []
        while self._is_over() and self._is_superseded(self._units[0]):
            dropped.append(self._drop())
        return dropped

    def take(self, now: float) -> tuple[Unit | None, list[Unit]]:
        """The next unit to run, None if none waits; and those dropped before it because they were stale."""
        dropped = []
        while self._units:
            head = self._units[0]
            if now - head.ready_at > self._max_lag_s and self._is_superseded(head):
                dropped.append(self._drop())
                continue
            self._bytes -= head.size
            return self._units.popleft(), dropped
        return None, dropped

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
        return len(self._units) > self._max_units or self._bytes > self._max_bytes

    def _is_superseded(self, unit: Unit) -> bool:
        return unit.append < self._units[-1].append

    def _drop(self) -> Unit:
        unit = self._units.popleft()
        self._bytes -= unit.size
        if unit.force_listen:
            self._units[0].force_listen = True
        return unit
