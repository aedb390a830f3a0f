"""The context of a decoder with a sliding window, of unlimited length."""

from dataclasses import KW_ONLY, dataclass

from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.decoder import Segment

SLACK = 256
"""Rows of a slot beyond the sliding window: pages are freed once in this many rows."""


@dataclass
class RollingContext(Context):
    """A rolling context: rows outside every window are dropped; positions only grow."""

    _: KW_ONLY
    reach: int
    """Rows that a row attends to, itself included: the sliding window of every layer."""
    spare: int = 0
    """Extra rows to keep, by which the context may go back."""

    @property
    def tokens(self) -> int:
        return min(self.length + self.dropped, self.reach)

    def segment(self, rows: Rows) -> Segment:
        if self.length + len(rows) > self.decoder.cache.capacity:
            forgotten = self.length - (self.reach - 1) - self.spare
            self.decoder.cache.drop(self.slot, forgotten)
            self.length -= forgotten
            self.dropped += forgotten
            self._prefix = None
        return super().segment(rows)

    @property
    def position(self) -> int:
        """The position of the next row."""
        return self.length + self.dropped

    def go_back(self, position: int) -> None:
        """Drop all rows from a position on, at most `spare` rows back."""
        self.cut(position - self.dropped)
