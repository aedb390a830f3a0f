"""Orders on their way to the engine thread."""

import threading
from collections import deque
from collections.abc import Callable

Order = Callable[[], None]


class Inbox:
    """Thread-safe and in order. Its length is bounded by the unit windows of the sessions that write to it."""

    def __init__(self) -> None:
        self._orders: deque[Order] = deque()
        self._arrived = threading.Condition()

    def put(self, order: Order) -> None:
        """Adds an order; never blocks."""
        with self._arrived:
            self._orders.append(order)
            self._arrived.notify()

    def take(self, wait: bool) -> list[Order]:
        """Everything that has come; with `wait`, blocks until there is something."""
        with self._arrived:
            while wait and not self._orders:
                self._arrived.wait()
            orders = list(self._orders)
            self._orders.clear()
            return orders
