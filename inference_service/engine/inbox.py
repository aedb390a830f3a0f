"""Orders on their way to the engine thread."""

import threading
from collections import deque
from collections.abc import Callable

Order = Callable[[], None]


class Inbox:
    """Thread-safe and in order. Bounded by the unit windows of the sessions that write to it."""

    def __init__(self) -> None:
        self._orders: deque[Order] = deque()
        self._arrived = threading.Condition()

    def put(self, order: Order) -> None:
        """Adds an order; never blocks."""
        with self._arrived:
            self._orders.append(order)
            self._arrived.notify()

    def take(self, wait: bool) -> Order | None:
        """The next order; None if there is none and `wait` is False."""
        with self._arrived:
            while wait and not self._orders:
                self._arrived.wait()
            return self._orders.popleft() if self._orders else None
