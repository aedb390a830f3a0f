"""Plain HTTP: a connection takes one request, answers it and is closed, whatever else the client sends."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from websockets.http11 import Response

from antiphon_service.listening import bind_all
from antiphon_service.telemetry.port import UNKNOWN_ADDRESS, stop_listening
from ws_adapter.web.http1 import LARGEST_BODY_BYTES, HttpRequest, RequestReader

ANSWER_TIMEOUT_S: Final = 5.0
"""The most seconds for making an answer."""

LINGER_S: Final = 2.0
"""The seconds for which a connection is still read before it is closed, so that the client can read the last
bytes. Closing a socket with unread input resets the connection, and the client may lose them."""

Answer = Callable[[HttpRequest], Awaitable[Response]]

logger = logging.getLogger(__name__)


class HttpExchange:
    """The answer to `request` on `transport`. Further input is read and discarded.

    `may_discard` returns whether `size` more bytes may be discarded; if not, the connection is aborted.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        request: HttpRequest,
        answer: Answer,
        may_discard: Callable[[int], bool] = lambda size: True,
    ) -> None:
        self._transport = transport
        self._request = request
        self._may_discard = may_discard
        self._discarded = 0
        self._has_all_input = False
        self._was_answered = False
        self._closing: asyncio.TimerHandle | None = None
        self._answering = asyncio.create_task(self._run(answer))

    def data_received(self, data: bytes) -> None:
        """Discard data; abort the connection of a client that sends too much."""
        self._discarded += len(data)
        if self._discarded > LARGEST_BODY_BYTES or not self._may_discard(len(data)):
            self._transport.abort()

    def eof_received(self) -> bool:
        """Keep the transport open for the answer, unless it uses TLS, which has no half-close."""
        self._has_all_input = not self._was_answered and self._transport.can_write_eof()
        return self._has_all_input

    def connection_lost(self) -> None:
        """Cancel the timer of a lost connection."""
        if self._closing is not None:
            self._closing.cancel()

    async def _run(self, answer: Answer) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                response = await answer(self._request)
        except Exception:
            logger.exception("request failed: connection aborted without an answer")
            self._transport.abort()
            return
        self._was_answered = True
        if not self._transport.is_closing():
            self._transport.write(response.serialize())
            self._end()

    def _end(self) -> None:
        if self._has_all_input:
            self._transport.close()
        elif self._transport.can_write_eof():
            with suppress(OSError, RuntimeError):
                self._transport.write_eof()
        elif self._request.goes_on:
            self._closing = asyncio.get_running_loop().call_later(LINGER_S, self._transport.close)
        else:
            self._transport.close()


class HttpConnection(asyncio.Protocol):
    """A connection that takes one request, answers it and closes, within `timeout_s` seconds."""

    def __init__(
        self,
        answer: Callable[[HttpRequest, str], Awaitable[Response]],
        timeout_s: float,
        on_lost: Callable[["HttpConnection"], None],
    ) -> None:
        """`answer` also gets the address of the client."""
        self._answer = answer
        self._timeout_s = timeout_s
        self._on_lost = on_lost
        self._reader = RequestReader()
        self._exchange: HttpExchange | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline of the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(self._timeout_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        """Read the request, then hand the rest to its exchange."""
        if self._exchange is not None:
            self._exchange.data_received(data)
        elif (request := self._reader.feed(data)) is not None:
            peer, *_ = self._transport.get_extra_info("peername") or (UNKNOWN_ADDRESS,)
            self._exchange = HttpExchange(
                self._transport, request, lambda request: self._answer(request, peer)
            )

    def eof_received(self) -> bool:
        """Keep the transport open if an answer is still to come."""
        return self._exchange is not None and self._exchange.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        """Release the deadline and the exchange."""
        self._deadline.cancel()
        if self._exchange is not None:
            self._exchange.connection_lost()
        self._on_lost(self)


class HttpServer:
    """A server of plain HTTP requests, one for each connection."""

    def __init__(self, answer: Callable[[HttpRequest, str], Awaitable[Response]], timeout_s: float) -> None:
        """`answer` also gets the address of the client; a connection lasts for `timeout_s` at most."""
        self._answer = answer
        self._timeout_s = timeout_s
        self._servers: list[asyncio.Server] = []
        self._open: set[HttpConnection] = set()
        self._none_open = asyncio.Event()

    async def start(self, host: str, port: int, *, reuse: bool = False) -> int:
        """Listen on all addresses of `host`, with `reuse` on a shared port; return the port.

        Raises `OSError`.
        """
        loop = asyncio.get_running_loop()
        sockets = bind_all(host, port, reuse_port=reuse)
        for sock in sockets:
            self._servers.append(await loop.create_server(self._connect, sock=sock))
        bound: int = sockets[0].getsockname()[1]
        return bound

    def leave(self) -> None:
        """Stop listening on a shared port; accepted requests are answered."""
        for server in self._servers:
            stop_listening(server)

    async def close(self) -> None:
        """Stop listening, and wait until every connection is closed."""
        for server in self._servers:
            server.close()
        if self._open:
            await self._none_open.wait()

    def _connect(self) -> "HttpConnection":
        connection = HttpConnection(self._answer, self._timeout_s, self._lost)
        self._open.add(connection)
        self._none_open.clear()
        return connection

    def _lost(self, connection: "HttpConnection") -> None:
        self._open.discard(connection)
        if not self._open:
            self._none_open.set()
