"""The connection of a client, as a session uses it."""

from collections.abc import Callable
from typing import Protocol

from ws_adapter.protocol.core.actions import Respond
from ws_adapter.protocol.wire.errors import Verdict
from ws_adapter.web.message import Message


class ClientSocket(Protocol):
    """A WebSocket connection, or one HTTP request and its answer."""

    async def receive(self) -> Message:
        """Return the next message. Raises `Disconnected`."""

    async def send_text(self, *parts: bytes) -> None:
        """Send an event; wait while the transport is full. Raises `Disconnected`."""

    def write_text(self, *parts: bytes) -> bool:
        """Send an event at once; return False if that is impossible."""

    def begin_answer(self, begun: Respond) -> None:
        """Begin the answer to an HTTP request."""

    def buffered(self) -> int:
        """Return how many bytes wait in the transport."""

    def hold(self, is_held: bool) -> None:
        """Set whether reading is stopped for now."""

    def when_flooding(self, callback: Callable[[Verdict], None]) -> None:
        """Call `callback` once if the client exceeds its rate limit."""

    def when_text(self, callback: Callable[[bytes], bool]) -> None:
        """Call `callback` with each new text message; `receive` returns those for which it returns False."""

    async def close(self, code: int, reason: str) -> None:
        """Close, and return once that is done."""

    async def wait_closed(self) -> None:
        """Wait until the transport is gone."""

    def abort(self) -> None:
        """Abort the transport."""
