"""Replay buffers: the latest events of sessions, for clients that missed them and reconnect."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ws_adapter.process.blocks import ANSWER, Blocks, Stored, parts_of, size_of

MOST_EVENTS: Final = 1024
MOST_BYTES: Final = 2**20
"""The most bytes of one session: more than the unsent bytes in the transport and the kernel."""

MOST_KEPT_BYTES: Final = 128 * 2**20
"""The most bytes of all sessions together."""

Parts = tuple[bytes, ...]
"""An encoded event, as it was sent."""


class ReplayBuffers:
    """The buffers of all sessions, and the bytes in them: at most `MOST_KEPT_BYTES` and one event."""

    def __init__(self) -> None:
        self.blocks: Final = Blocks(MOST_KEPT_BYTES, ANSWER)
        """Blocks for long events."""
        self.kept_bytes = 0
        self._open: dict[ReplayBuffer, None] = {}
        """Open buffers; the one that was cut most recently is last."""

    @property
    def share(self) -> int:
        """The bytes that each session may keep when the bound is reached."""
        return min(MOST_BYTES, MOST_KEPT_BYTES // max(1, len(self._open)))

    def enter(self, buffer: "ReplayBuffer") -> None:
        """Add a buffer. Harmless when repeated."""
        self._open.setdefault(buffer)

    def leave(self, buffer: "ReplayBuffer") -> None:
        """Remove a buffer. Harmless when repeated."""
        self._open.pop(buffer, None)

    def make_room(self, buffer: "ReplayBuffer") -> None:
        """Cut buffers to their share, `buffer` first, until all together are within the bound.

        The others lose even their last event if that alone is larger, since an idle session would keep it.
        """
        share = self.share
        buffer.cut(share, least=1)
        for _ in range(len(self._open)):
            if self.kept_bytes <= MOST_KEPT_BYTES:
                return
            other = next(iter(self._open))
            del self._open[other]
            self._open[other] = None
            if other is not buffer:
                other.cut(share, least=0)


class ReplayBuffer:
    """The last events of one session, numbered from 1; long events are copied into blocks.

    Nothing is kept before `open`. The last event is kept whatever its size, unless `make_room` drops it.
    """

    def __init__(self, all_buffers: ReplayBuffers) -> None:
        self.sent = 0
        """The number of sent events, which is the number of the last event."""
        self._all = all_buffers
        self._is_open = False
        self._events: deque[Stored] = deque()
        self._bytes = 0

    def open(self) -> None:
        """Keep events from now on. Harmless when repeated."""
        self._is_open = True
        self._all.enter(self)

    def add(self, event: Parts) -> None:
        """Number an event and keep it; drop the oldest ones beyond the bounds."""
        self.sent += 1
        if not self._is_open:
            return
        self._events.append(self._all.blocks.store(event))
        self._count(sum(map(len, event)))
        if self._bytes > MOST_BYTES or len(self._events) > MOST_EVENTS:
            self.cut(MOST_BYTES, least=1)
        if self._all.kept_bytes > MOST_KEPT_BYTES:
            self._all.make_room(self)

    @property
    def first(self) -> int:
        """The number of the oldest kept event; without any, that of the next event."""
        return self.sent - len(self._events) + 1

    def event(self, number: int) -> Parts:
        """Return a kept event."""
        return parts_of(self._events[number - self.first])

    def restore(self, events: dict[int, Parts], newest: int) -> None:
        """Continue another buffer from its `events`, of which `newest` is the last number."""
        self.open()
        number = newest
        while number in events:
            number -= 1
        self.sent = number
        while self.sent < newest:
            self.add(events[self.sent + 1])

    def after(self, number: int) -> Iterator[Parts] | None:
        """Return the events after this number; None if they are not kept, or it was never sent."""
        missed = self.sent - number
        if not 0 <= missed <= len(self._events):
            return None
        return map(parts_of, islice(self._events, len(self._events) - missed, None))

    def cut(self, most_bytes: int, least: int) -> None:
        """Drop the oldest events beyond `most_bytes` and `MOST_EVENTS`; keep `least` at least."""
        events = self._events
        while len(events) > least and (self._bytes > most_bytes or len(events) > MOST_EVENTS):
            self._count(-size_of(events.popleft()))

    def close(self) -> None:
        """Drop all events, and keep none any more. Harmless when repeated."""
        self._is_open = False
        self._all.leave(self)
        self._events.clear()
        self._count(-self._bytes)

    def _count(self, size: int) -> None:
        self._bytes += size
        self._all.kept_bytes += size
