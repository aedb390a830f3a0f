"""Light WebSocket clients for load tests: frames are built once, and answers are not parsed."""

import asyncio
import struct
from collections.abc import Callable
from typing import Final

from benchmarks.load.payload import PATH, PREPARE, PREPARED

_KEPT: Final = 512

OnEvent = Callable[["Client", bytes], None]


def text_frame(data: bytes) -> bytes:
    """Return a masked text frame. A mask of zeros saves the client's work; the server unmasks as usual."""
    size = len(data)
    if size < 126:
        head = struct.pack("!BB", 0x81, 0x80 | size)
    elif size < 65_536:
        head = struct.pack("!BBH", 0x81, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x81, 0x80 | 127, size)
    return head + bytes(4) + data


class Client(asyncio.Protocol):
    """One WebSocket connection. `on_event` is called with the first 512 bytes of every text message."""

    def __init__(self, on_event: OnEvent) -> None:
        self.on_event = on_event
        self.opened = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self._upgraded = False
        self._head = bytearray()
        self._begin = bytearray()
        self._left = 0
        self._in_payload = False

    @classmethod
    async def connect(cls, port: int, on_event: OnEvent, path: str = PATH) -> "Client":
        """Return an open WebSocket to `port` on loopback. Raises `ConnectionError` if it is closed before."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(on_event), "127.0.0.1", port)
        request = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        client.transport.write(request.encode())
        await client.opened
        return client

    def send(self, frame: bytes) -> None:
        """Send a frame made by `text_frame`."""
        self.transport.write(frame)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the new connection."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        """Mark the connection as closed."""
        self.closed.set()
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("closed before it was open"))

    def data_received(self, data: bytes) -> None:
        """Pass the beginning of each message to `on_event`."""
        position = 0 if self._upgraded else self._upgrade(data)
        size = len(data)
        while position < size:
            if not self._in_payload:
                position = self._read_head(data, position)
                if not self._in_payload:
                    continue
            taken = min(self._left, size - position)
            if len(self._begin) < _KEPT:
                self._begin += data[position : position + min(taken, _KEPT)]
            position += taken
            self._left -= taken
            if not self._left:
                self._in_payload = False
                self._complete()

    def _upgrade(self, data: bytes) -> int:
        self._head += data
        end = self._head.find(b"\r\n\r\n")
        if end < 0:
            return len(data)
        assert b" 101 " in self._head[:20], bytes(self._head)
        rest = len(self._head) - end - 4
        self._head.clear()
        self._upgraded = True
        self.opened.set_result(None)
        return len(data) - rest

    def _read_head(self, data: bytes, position: int) -> int:
        wanted = 2
        while True:
            missing = wanted - len(self._head)
            self._head += data[position : position + missing]
            position = min(len(data), position + missing)
            if len(self._head) < wanted:
                return position
            short = self._head[1] & 0x7F
            whole = 2 + {126: 2, 127: 8}.get(short, 0)
            if wanted == whole:
                break
            wanted = whole
        self._left = short if short < 126 else int.from_bytes(self._head[2:])
        self._opcode = self._head[0] & 0x0F
        self._head.clear()
        self._begin.clear()
        self._in_payload = True
        if not self._left:
            self._in_payload = False
            self._complete()
        return position

    def _complete(self) -> None:
        if self._opcode == 1:
            self.on_event(self, bytes(self._begin))
        elif self._opcode == 9:
            self.send(bytes((0x8A, 0x80 | len(self._begin))) + bytes(4) + bytes(self._begin))


async def converse(port: int, on_event: OnEvent, patience_s: float = 30.0) -> Client:
    """Return a client with a prepared session; its later events go to `on_event`.

    Raises `ConnectionError` after an error event, and `TimeoutError` after `patience_s`.
    """
    prepared: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wait(client: Client, event: bytes) -> None:
        if PREPARED in event:
            client.on_event = on_event
            prepared.set_result(None)
        elif b'"error"' in event and not prepared.done():
            prepared.set_exception(ConnectionError(event.decode()))

    client = await Client.connect(port, wait)
    client.send(text_frame(PREPARE))
    async with asyncio.timeout(patience_s):
        await prepared
    return client
