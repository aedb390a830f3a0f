"""Latest units of a full-duplex session, kept for a replay at another worker."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from antiphon.v1 import inference_service_pb2 as pb

_OPEN: Final = (pb.UNIT_END_CHUNK, pb.UNIT_END_CANCELLED)
"""Ends of a unit after which the next one may continue its turn."""

Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Kept]):
    """A unit that was answered."""

    kept: Kept
    size: int
    leaves_turn_open: bool


class UnitLog(Generic[Kept]):
    """Answered units of a session, within bounds.

    The log holds at most `seconds` of units and `size` bytes. The oldest units go first, up to one that
    continues no turn; a turn that is longer than that leaves nothing.
    """

    def __init__(self, seconds: float, size: int) -> None:
        """Raise `ValueError` for a bound that keeps nothing."""
        if seconds <= 0 or size <= 0:
            raise ValueError("The bounds of a journal are above 0.")
        self.unit_s = 1.0
        """Length of a unit in seconds."""
        self.held = 0
        """Bytes of the units that are kept."""
        self.unanswered: dict[int, Kept] = {}
        """Units without an answer, by their numbers."""
        self._seconds = seconds
        self._size = size
        self._entries: deque[_Entry[Kept]] = deque()
        self._is_cut_in_turn = False
        """Whether the unit before the first one that is kept left its turn open."""

    def __len__(self) -> int:
        """Return how many answered units are kept."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Kept]:
        """Yield the answered units, oldest first."""
        for entry in tuple(self._entries):
            yield entry.kept

    def keep(self, kept: Kept, end: pb.UnitEnd, size: int, share: int | None = None) -> None:
        """Keep an answered unit that came to `end` and takes `size` bytes, of `share` for all of them."""
        self._entries.append(_Entry(kept, size, end in _OPEN))
        self.held += size
        most = self._size if share is None else min(self._size, share)
        entries = self._entries
        while entries and (
            len(entries) * self.unit_s > self._seconds or self.held > most or self._is_cut_in_turn
        ):
            oldest = entries.popleft()
            self.held -= oldest.size
            self._is_cut_in_turn = oldest.leaves_turn_open

    def silence(self, kept: Kept, size: int) -> None:
        """Note that a kept unit left no turn open after all, and takes `size` bytes now."""
        for index, entry in enumerate(self._entries):
            if entry.kept is kept:
                self.held += size - entry.size
                self._entries[index] = _Entry(kept, size, False)

    def replayed(self) -> None:
        """Note that another session has heard the kept units, and goes on from there."""
        if not self._entries:
            self._is_cut_in_turn = False

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.unanswered.clear()
        self.held = 0
        self._is_cut_in_turn = False
