"""What the connections of one address may cost together, whatever each of them may.

An address that opens many connections must not get more of the event loop and of the log than one that opens
a few. What is remembered is bounded: addresses that have not come for the longest are forgotten first.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from ws_adapter.process.clock import Clock
from ws_adapter.web.bucket import Bucket

REMEMBERED: Final = 10_000
"""Most addresses whose allowances are kept."""

BURST_S: Final = 10.0
"""Frames of so many seconds may come at once: somebody uploads a recording."""

FRAME_BYTES: Final = 2**15
"""A longer frame counts as several."""

LINES: Final = 600
LINES_PER_S: Final = 10.0
"""Of the log, for what clients do. They must not fill a disk, from however many connections."""

PAGES_BURST_S: Final = 60.0


@dataclass(frozen=True)
class Allowance:
    """What one address may still do; `frames` and `pages` are None where nobody counts them."""

    clock: Clock
    frames: Bucket | None
    pages: Bucket | None
    lines: Bucket

    def takes_frame(self, size: int) -> bool:
        """Whether a frame of `size` bytes may come; if so, it is counted."""
        return self.frames is None or self.frames.take(self.clock.now(), 1 + size // FRAME_BYTES)

    def takes_line(self) -> bool:
        """Whether the log may say something about the client; if so, it is counted."""
        return self.lines.take(self.clock.now())


class Allowances:
    """Those of all addresses. Limits of 0 are none."""

    def __init__(self, clock: Clock, frames_per_s: int, pages_per_min: int) -> None:
        self._clock = clock
        self._frames_per_s = frames_per_s
        self._pages_per_s = pages_per_min / 60
        self._known: OrderedDict[tuple[str, bool], Allowance] = OrderedDict()

    def of(self, client: str, *, is_limited: bool) -> Allowance:
        """That of a client; of one who is not limited only the lines of the log are counted."""
        key = client, is_limited
        if key not in self._known:
            self._known[key] = self._new(is_limited)
        self._known.move_to_end(key)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return self._known[key]

    def _new(self, is_limited: bool) -> Allowance:
        now = self._clock.now()
        frames = pages = None
        if is_limited and self._frames_per_s:
            frames = Bucket(self._frames_per_s * BURST_S, self._frames_per_s, now)
        if is_limited and self._pages_per_s:
            pages = Bucket(self._pages_per_s * PAGES_BURST_S, self._pages_per_s, now)
        return Allowance(self._clock, frames, pages, Bucket(LINES, LINES_PER_S, now))
