"""One public WebSocket, as frames of bytes."""

from collections import deque
from typing import Any, Final

from websockets.asyncio.server import ServerConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.protocol import Event

WRITE_LIMIT: Final = 32 * 1024
"""Bytes that the transport holds before `send` waits: what is hidden there cannot be taken back."""


class Disconnected(Exception):
    """The connection is over."""


class PublicConnection(ServerConnection):
    """A connection whose messages stay undecoded: JSON is parsed from bytes, and UTF-8 is checked there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._opcodes: deque[Opcode] = deque()

    def process_event(self, event: Event) -> None:
        """Remembers of each message whether it is text, which undecoded bytes no longer tell."""
        if isinstance(event, Frame) and event.opcode in (Opcode.TEXT, Opcode.BINARY):
            self._opcodes.append(event.opcode)
        super().process_event(event)

    async def receive(self) -> tuple[bool, bytes]:
        """The next message and whether it is text. Raises `Disconnected`."""
        try:
            data = await self.recv(decode=False)
        except ConnectionClosed:
            raise Disconnected from None
        return self._opcodes.popleft() is Opcode.TEXT, data

    async def send_text(self, data: bytes) -> None:
        """Sends UTF-8 as a text message; waits while the transport is full. Raises `Disconnected`."""
        try:
            await self.send(data, text=True)
        except ConnectionClosed:
            raise Disconnected from None

    def buffered(self) -> int:
        """Bytes that wait in the transport."""
        return self.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Cuts the transport, whatever waits in it."""
        self.transport.abort()
