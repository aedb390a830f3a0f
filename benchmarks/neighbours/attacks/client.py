"""A malicious client: its connections and messages, and counts of the answers.

The client connects over loopback like its neighbours. The adapter trusts this machine as a proxy, and a
header names a remote address for the attackers. So all limits per address apply to them.
"""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus

FROM: Final = {"X-Forwarded-For": "203.0.113.7"}
PROXY: Final = ("--trusted-proxies", "127.0.0.1")
"""The option that makes the adapter trust this header."""

PATIENCE_S: Final = 30.0
"""The longest wait for an event, for an answer or to write, in seconds."""

_TYPE: Final = re.compile(r'\{"type":"([a-z_.]+)"')
_SMALL: Final = 10_000
"""Error events with fewer characters than this are parsed."""

_END: Final = ""
"""The type that marks the end of the connection."""

Event = Mapping[str, Any]


class Disconnected(Exception):
    """The adapter has closed or rejected the connection, or has not answered in time."""


class AttackConnection:
    """An open WebSocket. The tally counts received messages by type, errors by code, and the end."""

    def __init__(self, socket: ClientConnection, tally: Counter[str]) -> None:
        self._socket = socket
        self._tally = tally
        self._types: asyncio.Queue[str] = asyncio.Queue(1000)
        self._listening = asyncio.create_task(self._listen())

    async def say(self, *events: Event | str) -> None:
        """Send events, as objects or as JSON. Raises `Disconnected`."""
        for event in events:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._socket.send(event if isinstance(event, str) else json.dumps(event))
            except (ConnectionClosed, TimeoutError):
                raise Disconnected from None
            except AttributeError:
                # The library aborts the transport when a send is cancelled; a lost one raises this error.
                task = asyncio.current_task()
                raise (asyncio.CancelledError if task and task.cancelling() else Disconnected) from None

    async def until(self, *types: str) -> None:
        """Wait for an event of one of these types. Raises `Disconnected`."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while (name := await self._types.get()) not in types:
                    if name == _END:
                        raise Disconnected
        except TimeoutError:
            self._tally["no answer"] += 1
            raise Disconnected from None

    async def pour(self, frames: bytes, first: bytes = b"") -> None:
        """Write `first` once and then `frames` repeatedly, until the connection is closed."""
        # RuntimeError: the adapter closed its direction, and the library then closed this one.
        with suppress(ConnectionError, ConnectionClosed, TimeoutError, RuntimeError):
            self._socket.transport.write(first)
            while not self._listening.done() and not self._socket.transport.is_closing():
                self._socket.transport.write(frames)
                # Let the reader run, even while the socket accepts more bytes.
                await asyncio.sleep(0)
                async with asyncio.timeout(PATIENCE_S):
                    await self._socket.drain()
        await self.ended()

    async def ended(self) -> None:
        """Wait until the adapter has closed the connection, at most `PATIENCE_S`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.shield(self._listening)

    async def leave(self) -> None:
        """Drop the connection without a Close frame."""
        # The transport of a lost connection has no event loop.
        with suppress(AttributeError):
            self._socket.transport.abort()
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen(self) -> None:
        try:
            while True:
                text = await self._socket.recv()
                assert isinstance(text, str)
                self._note(text)
        except ConnectionClosed as closed:
            self._tally[f"closed {closed.rcvd.code}" if closed.rcvd else "cut"] += 1
        finally:
            self._keep(_END)

    def _note(self, text: str) -> None:
        found = _TYPE.match(text)
        name = found[1] if found else "an event"
        if name == "error" and len(text) < _SMALL:
            event = json.loads(text)
            error = event["error"]
            self._tally[str(error["code"] if isinstance(error, dict) else event["code"])] += 1
        else:
            self._tally[name] += 1
        self._keep(name)

    def _keep(self, name: str) -> None:
        if self._types.full():
            self._types.get_nowait()
        self._types.put_nowait(name)


class AttackClient:
    """A client of the adapter at `host:port`; `tally` counts the outcomes."""

    def __init__(self, address: str, tally: Counter[str]) -> None:
        self.tally = tally
        self._address = address
        self._host, _, self._port = address.rpartition(":")

    @asynccontextmanager
    async def visit(self, path: str) -> AsyncIterator[AttackConnection]:
        """Open a WebSocket at `path`; drop it at the end of the block. Raises `Disconnected`."""
        try:
            socket = await connect(
                f"ws://{self._address}{path}",
                additional_headers=FROM,
                compression=None,
                max_size=None,
                ping_interval=None,
                proxy=None,
                open_timeout=PATIENCE_S,
            )
        except InvalidStatus as refusal:
            self.tally[f"HTTP {refusal.response.status_code}"] += 1
            raise Disconnected from None
        except (OSError, InvalidHandshake, InvalidMessage) as error:
            self.tally[type(error).__name__] += 1
            raise Disconnected from None
        visit = AttackConnection(socket, self.tally)
        try:
            yield visit
        finally:
            await visit.leave()

    @asynccontextmanager
    async def session(
        self, mode: str, payload: Mapping[str, Any] | None = None
    ) -> AsyncIterator[AttackConnection]:
        """Open a session of `/v1/realtime` in `mode`, ready for input. Raises `Disconnected`."""
        async with self.visit(f"/v1/realtime?mode={mode}") as visit:
            await visit.say({"type": "session.init", "payload": payload or {}})
            await visit.until("session.created", "error", "session.closed")
            yield visit

    async def request(self, line: str, headers: str = "", body: bytes = b"") -> None:
        """Send an HTTP request; `body` is repeated until the server closes the connection."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(self._host, int(self._port))
                try:
                    forwarded = "".join(f"{name}: {value}\r\n" for name, value in FROM.items())
                    head = f"{line} HTTP/1.1\r\nHost: {self._address}\r\n{forwarded}{headers}\r\n"
                    writer.write(head.encode())
                    pouring = asyncio.create_task(_pour(writer, body))
                    try:
                        answer = await reader.read(12)
                        while await reader.read(2**16):
                            pass
                        self.tally[f"HTTP {answer[9:12].decode()}" if answer else "cut"] += 1
                    finally:
                        pouring.cancel()
                        await asyncio.gather(pouring, return_exceptions=True)
                finally:
                    writer.transport.abort()
        except (OSError, TimeoutError) as error:
            self.tally["cut" if isinstance(error, ConnectionError) else "no answer"] += 1


async def _pour(writer: asyncio.StreamWriter, body: bytes) -> None:
    with suppress(ConnectionError):
        while body:
            writer.write(body)
            await writer.drain()
