"""Latest units of a full-duplex session, kept for a replay at another worker."""

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeAlias, TypeVar

from antiphon.v1 import inference_service_pb2 as pb

_OPEN: Final = (pb.UNIT_END_CHUNK, pb.UNIT_END_CANCELLED)
"""The unit ends after which the next unit may continue the turn."""

Kept = TypeVar("Kept")


_Entry: TypeAlias = tuple[Kept, int, bool]
"""An answered unit, its size in bytes, and whether it leaves a turn open.

A tuple of untracked objects is itself not tracked by the garbage collector; a busy process has 100,000 of
them.
"""


class UnitLog(Generic[Kept]):
    """A bounded log of a session's answered units.

    The log holds at most `seconds` of units and `size` bytes. Beyond that it drops the oldest units; the
    first remaining unit never continues a turn. A single turn beyond these bounds empties the log.
    """

    def __init__(self, seconds: float, size: int) -> None:
        """Raise `ValueError` for a bound that keeps nothing."""
        if seconds <= 0 or size <= 0:
            raise ValueError("The bounds of a journal are above 0.")
        self.unit_s = 1.0
        """The length of a unit in seconds."""
        self.held = 0
        """The size of the kept units in bytes."""
        self.unanswered: dict[int, Kept] = {}
        """The units without an answer, by their numbers."""
        self._seconds = seconds
        self._size = size
        self._entries: deque[_Entry[Kept]] = deque()
        self._is_cut_in_turn = False
        """Whether the unit before the first kept one left its turn open."""

    def __len__(self) -> int:
        """Return the number of answered units that are kept."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Kept]:
        """Yield the answered units, oldest first."""
        for kept, _, _ in tuple(self._entries):
            yield kept

    def keep(self, kept: Kept, end: pb.UnitEnd, size: int, share: int | None = None) -> None:
        """Keep an answered unit with its `end` and its `size` in bytes.

        `share` is a further bound on the bytes of all kept units.
        """
        self._entries.append((kept, size, end in _OPEN))
        self.held += size
        most = self._size if share is None else min(self._size, share)
        entries = self._entries
        while entries and (
            len(entries) * self.unit_s > self._seconds or self.held > most or self._is_cut_in_turn
        ):
            _, oldest, self._is_cut_in_turn = entries.popleft()
            self.held -= oldest

    def mark_turn_closed(self, kept: Kept, size: int) -> None:
        """Mark a kept unit as one that leaves no turn open, with a new `size` in bytes."""
        for index, (entry, before, _) in enumerate(self._entries):
            if entry is kept:
                self.held += size - before
                self._entries[index] = (kept, size, False)

    def replayed(self) -> None:
        """Mark the kept units as replayed: another session continues after them."""
        if not self._entries:
            self._is_cut_in_turn = False

    def clear_answered(self) -> None:
        """Drop the answered units."""
        self._entries.clear()
        self.held = 0
        self._is_cut_in_turn = False

    def clear(self) -> None:
        """Drop all units."""
        self._entries.clear()
        self.unanswered.clear()
        self.held = 0
        self._is_cut_in_turn = False
