"""The port of an operator: plain HTTP for a few pages, apart from what clients use."""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

from antiphon.listening import bind_all

READING: Final = ("GET", "HEAD")
"""The methods of a page."""

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"
PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
)
"""The status page has neither scripts nor anything that is loaded."""

OPEN_TIMEOUT_S: Final = 5.0
"""Longest that a request may take to come in."""

NOWHERE: Final = "0.0.0.0"

_quiet = logging.getLogger(f"{__name__}.websockets")
_quiet.setLevel(logging.WARNING)  # a scrape is no event


class Port:
    """Answers every request by `answer`, and HEAD without its body."""

    def __init__(
        self,
        answer: Callable[[Request, str], Awaitable[Response]],
        connection: type[ServerConnection] = ServerConnection,
    ) -> None:
        """`answer` gets the address of the other end, too; `connection` reads the requests."""
        self._answer = answer
        self._connection = connection
        self._servers: list[Server] = []

    async def start(self, host: str, port: int, *, reuse: bool = False) -> int:
        """Listen on all addresses of a host, with `reuse` beside others; return the port.

        Raises `OSError` if one of them cannot be had.
        """
        sockets = bind_all(host, port, reuse_port=reuse)
        for sock in sockets:
            server = await serve(
                _no_websocket,
                sock=sock,
                process_request=self._respond,
                open_timeout=OPEN_TIMEOUT_S,
                server_header=None,
                create_connection=self._connection,
                logger=_quiet,
            )
            self._servers.append(server)
        bound: int = sockets[0].getsockname()[1]
        return bound

    def leave(self) -> None:
        """Leaves the port to others; what has come in is answered."""
        for server in self._servers:
            stop_listening(server)

    async def close(self) -> None:
        """Stops listening."""
        for server in self._servers:
            server.close()
        for server in self._servers:
            await server.wait_closed()

    async def _respond(self, connection: ServerConnection, request: Request) -> Response:
        # There is none if the client left before its connection was accepted.
        peer, *_ = connection.remote_address or (NOWHERE,)
        response = await self._answer(request, peer)
        if request.method == "HEAD":
            return Response(response.status_code, response.reason_phrase, response.headers)
        return response


def stop_listening(server: Server) -> None:
    """Has a server accept nobody any more, while all that it has accepted goes on as before.

    `Server.close` would turn those away whose handshake is not over.
    """
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
        listener.shutdown(socket.SHUT_RDWR)


async def _no_websocket(connection: ServerConnection) -> None:
    """Never called: every request is answered."""
