"""The queue of opening handshakes: a rate limit, with fair queueing over client addresses.

A handshake and the start of its session take a millisecond of the event loop. Without the queue, hundreds of
new clients at once would delay all running sessions.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from ws_adapter.process.clock import Clock, Timer

BURST: Final = 4
"""The number of handshakes that may begin at once."""

_FULL: Final = BURST - 0.5
"""The longest time in intervals that is saved up for a burst: half an interval less than `BURST`, so that
rounding of times allows no further handshake."""

LONGEST_WAIT_S: Final = 4.0
"""The longest wait in a full queue in seconds, below the timeout of a handshake."""


T = TypeVar("T", bound="Waiting")


class Waiting(Protocol):
    """A connection whose request has arrived."""

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the connection is lost."""

    def let_in(self) -> None:
        """Begin the handshake."""


class HandshakeQueue(Generic[T]):
    """Connections that wait for their handshake, in the order of arrival for each address.

    Addresses take turns (fair queueing), so that a client waits only for earlier connections of its own
    address and for as many of each other address. When the queue is full, the last connection of the address
    with the most is rejected.
    """

    def __init__(self, per_s: float, clock: Clock, reject: Callable[[T], None]) -> None:
        """`per_s` handshakes may begin each second; 0 is no limit. `reject` is called with each connection
        that a full queue rejects."""
        self._reject = reject
        self._clock = clock
        self._most = max(1, round(per_s * LONGEST_WAIT_S))
        self._between_s = 1.0 / per_s if per_s else 0.0
        self._due = clock.now() - _FULL * self._between_s
        """The earliest time of the next handshake."""
        self._waiting: OrderedDict[str, deque[T]] = OrderedDict()
        """Waiting connections by address; the address whose turn is next comes first."""
        self._count = 0
        self._timer: Timer | None = None

    def __len__(self) -> int:
        """Return the number of waiting connections."""
        return self._count

    def enter(self, connection: T, address: str) -> bool:
        """Return whether the handshake may begin now; else queue the connection and call `let_in` later."""
        if not self._between_s:
            return True
        now = self._clock.now()
        if not self._count and self._due <= now:
            self._due = max(self._due, now - _FULL * self._between_s) + self._between_s
            return True
        self._waiting.setdefault(address, deque()).append(connection)
        self._count += 1
        connection.when_lost(partial(self._leave, connection, address))
        if self._count > self._most:
            self._reject_last()
        if self._timer is None:
            self._timer = self._clock.call_at(self._due, self._next)
        return False

    def close(self) -> None:
        """Remove all waiting connections; the caller closes them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._waiting.clear()
        self._count = 0

    def _next(self) -> None:
        """Begin the next handshake."""
        self._timer = None
        if not self._count:
            return
        address, waiting = self._waiting.popitem(last=False)
        connection = waiting.popleft()
        self._count -= 1
        if waiting:
            self._waiting[address] = waiting
        self._due = self._clock.now() + self._between_s
        if self._count:
            self._timer = self._clock.call_at(self._due, self._next)
        connection.let_in()

    def _reject_last(self) -> None:
        address = max(self._waiting, key=lambda address: len(self._waiting[address]))
        last = self._waiting[address][-1]
        self._leave(last, address)
        self._reject(last)

    def _leave(self, connection: T, address: str) -> None:
        """Remove a connection. Harmless when it does not wait."""
        waiting = self._waiting.get(address)
        if waiting is None or connection not in waiting:
            return
        waiting.remove(connection)
        self._count -= 1
        if not waiting:
            del self._waiting[address]
