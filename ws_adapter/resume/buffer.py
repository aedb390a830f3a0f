"""The events that a session sent last, for a client that comes back and missed them."""

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final, Protocol

MOST_EVENTS: Final = 1024
MOST_BYTES: Final = 2**20
"""Of one session: more than the buffers of the transport and of the kernel hold unsent."""

Parts = tuple[bytes, ...]
"""An event as it was sent."""


class Account(Protocol):
    """Counts the bytes in the buffers of all sessions."""

    kept_bytes: int

    @property
    def most_bytes(self) -> int:
        """Bytes that one session may keep."""


class ReplayBuffer:
    """Numbers events from 1 and keeps the last ones, as they were sent and not copied.

    It keeps the last event however large that is, and nothing before it is `open`.
    """

    def __init__(self, account: Account) -> None:
        self.sent = 0
        """Events that were sent: the number of the last one."""
        self._account = account
        self._is_open = False
        self._events: deque[Parts] = deque()
        self._bytes = 0

    def open(self) -> None:
        """Keep events from now on. Harmless when repeated."""
        self._is_open = True

    def add(self, event: Parts) -> None:
        """Number an event and keep it; drop the oldest ones beyond the bounds."""
        self.sent += 1
        if not self._is_open:
            return
        self._events.append(event)
        self._count(sum(map(len, event)))
        while len(self._events) > 1 and (
            len(self._events) > MOST_EVENTS or self._bytes > self._account.most_bytes
        ):
            self._count(-sum(map(len, self._events.popleft())))

    def after(self, number: int) -> Iterator[Parts] | None:
        """Return the events behind this number; None if they are not kept, or it was never sent."""
        missed = self.sent - number
        if not 0 <= missed <= len(self._events):
            return None
        return islice(self._events, len(self._events) - missed, None)

    def close(self) -> None:
        """Keep nothing any more. Harmless when repeated."""
        self._is_open = False
        self._events.clear()
        self._count(-self._bytes)

    def _count(self, size: int) -> None:
        self._bytes += size
        self._account.kept_bytes += size
