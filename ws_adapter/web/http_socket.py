"""An HTTP request that a session answers: a body in, an answer or a stream of events out."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from antiphon_service.telemetry.port import UNKNOWN_ADDRESS
from ws_adapter.access.keys import Key
from ws_adapter.access.rate_limit import Allowance
from ws_adapter.access.rights import ALL_RIGHTS
from ws_adapter.observability.tracing import Upgrade
from ws_adapter.process.byte_count import ByteCount
from ws_adapter.protocol.core.actions import Respond
from ws_adapter.protocol.wire.errors import CloseCode, Verdict
from ws_adapter.web.http1 import LARGEST_BODY_BYTES, HttpRequest
from ws_adapter.web.http_exchange import LINGER_S
from ws_adapter.web.message import Arriving, Disconnected, Message
from ws_adapter.web.routes import RefusedSession, Selection

COUNTED_BYTES: Final = 2**15
"""The bytes of a body that count as one frame in the address's rate limit."""

PROBE_S: Final = 20
"""The keepalive idle time and interval of the kernel, in seconds."""

PROBES: Final = 3

LARGE: Final = 2**20
"""The size above which an incomplete body is dropped once the server has no room."""

_MOST_BEHIND: Final = 2**16
"""The most bytes after the body that are discarded; further bytes abort the connection."""

_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_DONE: Final = b"data: [DONE]\n\n"


class TooLarge(Exception):
    """The server has no room for a body."""


class HttpSocket(asyncio.Protocol):
    """The connection of one request, as a session's socket: one message in, events out.

    A client that closes its side counts as disconnected. Bytes after the body are discarded, up to a bound.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        request: HttpRequest,
        rest: bytes,
        arriving: Arriving,
        byte_count: ByteCount,
    ) -> None:
        """`rest` are the bytes after the head. The bytes of the body are counted in `arriving` until
        `receive` returns it."""
        self.http_request = request
        self.key: Key | None = None
        self.tenant = ""
        self.selection: Selection | RefusedSession | None = None
        self.upgrade: Upgrade | None = None
        self.allowance: Allowance | None = None
        self.rights = ALL_RIGHTS
        self.was_too_large = False
        self.closed_with: int | None = None
        self.status = 0
        """The status of the answer, once it has begun."""
        self._transport = transport
        self._arriving = arriving
        self._byte_count = byte_count
        self._body = bytearray()
        self._body_news = asyncio.Event()
        self._taken = False
        self._discarded = 0
        self._most_discarded = 0
        self._reading = True
        self._respond = Respond(HTTPStatus.INTERNAL_SERVER_ERROR)
        self._ends_chunks = False
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._lost = asyncio.Event()
        self._on_lost: list[Callable[[], None]] = []
        self._lingering: asyncio.TimerHandle | None = None
        transport.set_protocol(self)
        _enable_keepalive(transport)
        if rest:
            self.data_received(rest)

    @property
    def request(self) -> Request:
        """The request in the form of a WebSocket's."""
        return self.http_request

    @property
    def peer(self) -> str:
        """The address of the client; `UNKNOWN_ADDRESS` if it left before its connection was accepted."""
        address: tuple[str, ...] | None = self._transport.get_extra_info("peername")
        return address[0] if address else UNKNOWN_ADDRESS

    def limit_messages(self, size: int) -> None:
        """Do nothing: the size of the body is known from its head."""

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call `callback` once when the transport is gone."""
        if self._lost.is_set():
            callback()
        else:
            self._on_lost.append(callback)

    # ------------------------------------------------------------------------ asyncio's callbacks

    def data_received(self, data: bytes) -> None:
        """Add data to the body; discard the bytes after it."""
        self._byte_count.received += len(data)
        missing = self.http_request.size - len(self._body)
        if not self._reading or self._taken or missing <= 0:
            self._discard(len(data))
            return
        part = data[:missing]
        self._body += part
        self._arriving.size += len(part)
        if len(self._body) > LARGE and self._arriving.is_full:
            self._reading = False
        if len(data) > missing:
            self._discard(len(data) - missing)
        self._body_news.set()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > self._most_discarded + _MOST_BEHIND:
            self._transport.abort()

    def eof_received(self) -> bool:
        """Close the transport: a client that closes its side counts as disconnected."""
        return False

    def pause_writing(self) -> None:
        """Make senders wait."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """Let senders continue."""
        self._may_write.set()

    def connection_lost(self, error: Exception | None) -> None:
        """Wake all tasks that wait for the client."""
        self._forget_body()
        self._lost.set()
        self._may_write.set()
        self._body_news.set()
        if self._lingering is not None:
            self._lingering.cancel()
        while self._on_lost:
            self._on_lost.pop()()

    # ------------------------------------------------------------------------------- the request

    def may_send(self) -> bool:
        """Return whether the rate limit of the address allows this body, which then counts."""
        frames = self.allowance.frames if self.allowance is not None else None
        return frames is None or frames.take(1 + self.http_request.size // COUNTED_BYTES)

    async def read_body(self, timeout_s: float) -> None:
        """Wait until the body is complete. Raises `Disconnected`, `TimeoutError` and `TooLarge`."""
        expects = [value.lower() for value in self.http_request.headers.get_all("Expect")]
        if "100-continue" in expects and not self._body:
            self._transport.write(_CONTINUE)
        async with asyncio.timeout(timeout_s):
            while len(self._body) < self.http_request.size:
                if self._lost.is_set():
                    raise Disconnected
                if not self._reading:
                    raise TooLarge
                self._body_news.clear()
                await self._body_news.wait()
        if self._lost.is_set():
            raise Disconnected

    async def receive(self) -> Message:
        """Return the body at the first call; later wait for the disconnection. Raises `Disconnected`."""
        if not self._taken and not self._lost.is_set():
            self._taken = True
            body = bytes(self._body)
            self._forget_body()
            return Message(True, body, 0.0, True)
        await self._lost.wait()
        raise Disconnected

    def _forget_body(self) -> None:
        self._arriving.size -= len(self._body)
        self._body = bytearray()

    def when_flooding(self, callback: Callable[[Verdict], None]) -> None:
        """Do nothing: there is one message."""

    def when_text(self, callback: Callable[[bytes], bool]) -> None:
        """Do nothing: `receive` returns the body."""

    def hold(self, is_held: bool) -> None:
        """Do nothing: nothing follows the body."""

    # -------------------------------------------------------------------------------- the answer

    def begin_answer(self, begun: Respond) -> None:
        """Set the head of the answer; it is written with the first event."""
        self._respond = begun

    async def send_text(self, *parts: bytes) -> None:
        """Write an event, or the whole answer; wait while the transport is full. Raises `Disconnected`."""
        await self._may_write.wait()
        if self._lost.is_set() or self._transport.is_closing():
            raise Disconnected
        data = b"".join(parts)
        if not self._respond.streams:
            head = self._head({"Content-Type": "application/json", "Content-Length": str(len(data))})
            self._write(head + data)
            return
        event = b"data: " + data + b"\n\n"
        self._write((b"" if self.status else self._stream_head()) + self._chunk(event))

    def write_text(self, *parts: bytes) -> bool:
        """Return False: events go through the outbox, which bounds them."""
        return False

    def _stream_head(self) -> bytes:
        fields = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        self._ends_chunks = self.http_request.protocol == "HTTP/1.1"
        if self._ends_chunks:
            fields["Transfer-Encoding"] = "chunked"
        return self._head(fields)

    def _head(self, fields: dict[str, str]) -> bytes:
        begun = self._respond
        self.status = begun.status.value
        given = {"Connection": "close", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        if begun.retry_s is not None:
            given["Retry-After"] = str(begun.retry_s)
        if self.upgrade is not None:
            given["X-Request-Id"] = self.upgrade.trace_id
        return Response(begun.status.value, begun.status.phrase, Headers(fields | given)).serialize()

    def _chunk(self, data: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(data), data) if self._ends_chunks else data

    def _write(self, data: bytes) -> None:
        self._byte_count.sent += len(data)
        self._transport.write(data)

    async def close(self, code: int = CloseCode.NORMAL, reason: str = "") -> None:
        """End the answer, and return when the transport is gone."""
        self.closed_with = code
        if not self._transport.is_closing():
            if self._respond.streams and self.status:
                self._write((self._chunk(_DONE) if code == CloseCode.NORMAL else b"") + self._last_chunk())
            self._transport.close()
        await self._lost.wait()

    def _last_chunk(self) -> bytes:
        return b"0\r\n\r\n" if self._ends_chunks else b""

    def refuse(self, response: Response) -> None:
        """Answer without a session; the rest of the body is discarded for a while."""
        self._reading = False
        self.status = response.status_code
        self._most_discarded = min(self.http_request.size, LARGEST_BODY_BYTES)
        if self._transport.is_closing():
            return
        if self.upgrade is not None:
            response.headers["X-Request-Id"] = self.upgrade.trace_id
            self.upgrade.answered(response.status_code)
        self._write(response.serialize())
        has_all = len(self._body) >= self.http_request.size
        self._forget_body()
        if has_all:
            self._transport.close()
            return
        if self._transport.can_write_eof():
            with suppress(OSError, RuntimeError):
                self._transport.write_eof()
        self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self._transport.abort)

    async def wait_closed(self) -> None:
        """Wait until the transport is gone."""
        await self._lost.wait()

    def buffered(self) -> int:
        """Return the bytes that wait in the transport."""
        return self._transport.get_write_buffer_size()

    def abort(self) -> None:
        """Abort the transport, and drop all waiting bytes."""
        self._transport.abort()


def _enable_keepalive(transport: asyncio.Transport) -> None:
    """Enable TCP keepalive, to detect lost clients that wait for an answer."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    with suppress(OSError, AttributeError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES)
