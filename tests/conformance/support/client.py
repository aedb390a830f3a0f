"""Clients that record all received events: one with a WebSocket library, one with a plain socket."""

import asyncio
import base64
import json
import os
import socket
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.support.patience import PATIENCE_S
from tests.support.schemas import Observer

Event = dict[str, Any]

TEXT, BINARY, CLOSE, PING, PONG = 0x1, 0x2, 0x8, 0x9, 0xA


def kind(event: Event) -> str:
    """Return `error:CODE` of an error, `kind` of a delta, `type` of any other event."""
    if event["type"] == "error":
        code = event["error"]["code"] if isinstance(event["error"], dict) else event["code"]
        return f"error:{code}"
    return str(event.get("kind", event["type"]))


def kinds(events: list[Event]) -> list[str]:
    """Return the `kind` of each event."""
    return [kind(event) for event in events]


class Client:
    """A client of any dialect. `events` holds all received events; `next` skips the kinds in `ignored`."""

    def __init__(self, socket: ClientConnection) -> None:
        assert socket.request is not None
        self.socket = socket
        self.events: list[Event] = []
        self.ignored: set[str] = set()
        self.observer = Observer(socket.request.path)

    async def send(self, *events: Event | list[Any] | str | bytes) -> None:
        """Sends events; text and bytes go as they are, as text and binary frames, and are not checked."""
        for event in events:
            if isinstance(event, dict):
                self.observer.client_said(event)
            await self.socket.send(event if isinstance(event, str | bytes) else json.dumps(event))

    async def next(self, within_s: float = PATIENCE_S) -> Event:
        """Return the next event; assert its schema and a text frame of at most 16 MiB."""
        async with asyncio.timeout(within_s):
            while kind(event := self._read(await self.socket.recv())) in self.ignored:
                pass
        return event

    def _read(self, frame: str | bytes) -> Event:
        assert isinstance(frame, str), "text frames only"
        assert len(frame) <= 16 * 2**20
        event: Event = json.loads(frame)
        self.observer.server_said(event)
        self.events.append(event)
        return event

    async def take(self, count: int) -> list[Event]:
        """The next `count` events."""
        return [await self.next() for _ in range(count)]

    async def expect(self, *names: str) -> Event:
        """Reads one event for each name, see `kind`; returns the last."""
        event: Event = {}
        for name in names:
            event = await self.next()
            assert kind(event) == name, event
        return event

    async def ask(self, event: Event | list[Any] | str) -> Event:
        """Sends and returns the next event."""
        await self.send(event)
        return await self.next()

    async def until(self, name: str, within_s: float = PATIENCE_S) -> list[Event]:
        """Return the events up to the first one of this kind, which is the last item."""
        start = len(self.events)
        while kind(await self.next(within_s)) != name:
            pass
        return self.events[start:]

    async def end(self) -> tuple[list[Event], int | None]:
        """Return the remaining events up to the end of the connection, and the close code."""
        found = []
        try:
            while True:
                found.append(await self.next())
        except ConnectionClosed:
            return found, self.socket.close_code

    def vanish(self) -> None:
        """Abort the connection without a Close frame."""
        self.socket.transport.abort()


@asynccontextmanager
async def meanwhile(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` during the block, and cancel it at the end."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def narrow_socket(host: str) -> socket.socket:
    """Return a socket that is connected to `host:port`, with a receive buffer of 4 KiB."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.setblocking(False)
    name, port = host.rsplit(":", 1)
    await asyncio.get_running_loop().sock_connect(found, (name, int(port)))
    return found


class RawClient:
    """A client that sends valid and invalid WebSocket frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: str) -> None:
        self._reader = reader
        self._writer = writer
        self._observer = Observer(target)
        self.events: list[Event] = []

    @classmethod
    async def connect(cls, host: str, target: str) -> "RawClient":
        """Connect to `host:port` and upgrade, with small receive buffers."""
        reader, writer = await asyncio.open_connection(sock=await narrow_socket(host), limit=4096)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = [
            f"GET {target} HTTP/1.1",
            f"Host: {host}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key}",
            "Sec-WebSocket-Version: 13",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode())
        async with asyncio.timeout(PATIENCE_S):
            head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 101 "), head
        return cls(reader, writer, target)

    async def frame(
        self, opcode: int, payload: bytes, *, fin: bool = True, masked: bool = True, reserved: int = 0
    ) -> None:
        """Sends one frame."""
        self._writer.write(_frame(opcode, payload, fin, masked, reserved))
        await self._writer.drain()

    async def flood(self, opcode: int, payload: bytes, count: int) -> None:
        """Send `count` equal frames at once."""
        self._writer.write(_frame(opcode, payload) * count)
        await self._writer.drain()

    async def send(self, *events: Event) -> None:
        """Send events as text frames."""
        for event in events:
            await self.frame(TEXT, json.dumps(event).encode())

    async def read(self) -> tuple[int, bytes]:
        """Return the opcode and the payload of the next frame."""
        async with asyncio.timeout(PATIENCE_S):
            first, second = await self._reader.readexactly(2)
            assert first & 0x80, "the server does not fragment"
            assert not second & 0x80, "the server does not mask"
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", await self._reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self._reader.readexactly(8))
            return first & 0x0F, await self._reader.readexactly(size)

    async def expect(self, *names: str) -> Event:
        """Read one event for each name, as `Client.expect` does; return the last."""
        event: Event = {}
        for name in names:
            opcode, payload = await self.read()
            assert opcode == TEXT, (opcode, payload)
            event = self._event(payload)
            assert kind(event) == name, event
        return event

    def _event(self, payload: bytes) -> Event:
        event: Event = json.loads(payload)
        self._observer.server_said(event)
        self.events.append(event)
        return event

    async def end(self) -> tuple[list[Event], int, str]:
        """Return the remaining events, the code and the reason of the server's Close.

        The client answers the Close, as the protocol requires; then the transport has to end.
        """
        start = len(self.events)
        while True:
            opcode, payload = await self.read()
            if opcode == CLOSE:
                break
            assert opcode == TEXT, (opcode, payload)
            self._event(payload)
        await self.frame(CLOSE, payload[:2])
        async with asyncio.timeout(PATIENCE_S):
            assert await self._reader.read() == b"", "nothing comes after the Close"
        return self.events[start:], struct.unpack("!H", payload[:2])[0], payload[2:].decode()

    def vanish(self) -> None:
        """Abort the connection without a Close frame."""
        self._writer.transport.abort()


def _frame(opcode: int, payload: bytes, fin: bool = True, masked: bool = True, reserved: int = 0) -> bytes:
    mask = bytes(4) if masked else b""  # zeros leave the payload as it is
    head = bytes([(0x80 if fin else 0) | reserved << 4 | opcode])
    flag, size = (0x80 if masked else 0), len(payload)
    if size < 126:
        head += bytes([flag | size])
    elif size < 2**16:
        head += bytes([flag | 126]) + struct.pack("!H", size)
    else:
        head += bytes([flag | 127]) + struct.pack("!Q", size)
    return head + mask + payload
