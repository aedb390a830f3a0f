"""A relay between two connections: it copies bytes from each side to the other, unchanged."""

import asyncio
from collections.abc import Callable
from typing import Final

WRITE_LIMIT: Final = 32 * 1024
"""The bytes waiting for one side above which reading from the other stops."""

FIRST_ANSWER_S: Final = 5.0
"""The seconds within which the adapter that has the session answers the request."""

STALL_S: Final = 60.0
"""The seconds after which a client that reads nothing is disconnected. The owner's own limit is shorter, but
while nothing is read from the owner, its close goes unnoticed."""

CLOSE_S: Final = 5.0
"""The seconds within which one side takes the remaining bytes once the other is gone."""


class Relay:
    """The connections to the client and to the owner, the adapter with the session; over once both are gone.

    Back-pressure works in both directions: while one side does not read, the other is not read either.
    """

    def __init__(
        self, client: asyncio.Transport, owner: asyncio.Transport, on_over: Callable[["Relay"], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_over = on_over
        self._open = 2
        self.client, self.owner = _Side(client, self._lost), _Side(owner, self._lost)
        self.client.other, self.owner.other = self.owner, self.client
        self._waiting = self._loop.call_later(FIRST_ANSWER_S, self.abort)
        self._stall: asyncio.TimerHandle | None = None
        self.owner.on_first_data = self._waiting.cancel
        self.client.on_full = self._watch_stall
        for side in (self.client, self.owner):
            side.transport.set_write_buffer_limits(high=WRITE_LIMIT)
            side.transport.set_protocol(side)
            side.transport.resume_reading()

    def abort(self) -> None:
        """Abort both connections, and drop all waiting bytes."""
        self.client.transport.abort()
        self.owner.transport.abort()

    def _watch_stall(self, is_full: bool) -> None:
        if self._stall is not None:
            self._stall.cancel()
        self._stall = self._loop.call_later(STALL_S, self.abort) if is_full else None

    def _lost(self, side: "_Side") -> None:
        self._open -= 1
        self._waiting.cancel()
        if self._open:
            transport = side.other.transport
            transport.close()
            self._waiting = self._loop.call_later(CLOSE_S, transport.abort)
        else:
            self._watch_stall(False)
            self._on_over(self)


class _Side(asyncio.Protocol):
    """One of the two connections."""

    other: "_Side"

    def __init__(self, transport: asyncio.Transport, on_lost: Callable[["_Side"], None]) -> None:
        self.transport = transport
        self.on_first_data: Callable[[], None] | None = None
        self.on_full: Callable[[bool], None] = lambda is_full: None
        self._on_lost = on_lost

    def data_received(self, data: bytes) -> None:
        if self.on_first_data is not None:
            self.on_first_data()
            self.on_first_data = None
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()
        self.on_full(True)

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()
        self.on_full(False)

    def connection_lost(self, error: Exception | None) -> None:
        self._on_lost(self)
