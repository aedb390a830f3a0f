"""The context of a decoder that looks back a limited number of rows, however long it runs."""

from dataclasses import KW_ONLY, dataclass

from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.decoder import Segment

SLACK = 256
"""Rows of a slot beyond what is looked back on: pages are given back once in so many rows."""


@dataclass
class RollingContext(Context):
    """Rows that no later row looks back on make room for new ones; positions only grow."""

    _: KW_ONLY
    reach: int
    """Rows that a row sees, itself included: the sliding window of every layer."""
    spare: int = 0
    """Further rows that are kept, for a context that may go back by so many."""

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
        """That of the next row."""
        return self.length + self.dropped

    def go_back(self, position: int) -> None:
        """Forget all rows from a position on, which is at most `spare` rows back."""
        self.cut(position - self.dropped)
