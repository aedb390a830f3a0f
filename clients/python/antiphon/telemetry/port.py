"""The port of an operator: plain HTTP for a few pages, apart from what clients use."""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response

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
        self._server: Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port. Raises `OSError` if that is impossible."""
        self._server = await serve(
            _no_websocket,
            host,
            port,
            process_request=self._respond,
            open_timeout=OPEN_TIMEOUT_S,
            server_header=None,
            create_connection=self._connection,
            logger=_quiet,
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _respond(self, connection: ServerConnection, request: Request) -> Response:
        # There is none if the client left before its connection was accepted.
        peer, *_ = connection.remote_address or (NOWHERE,)
        response = await self._answer(request, peer)
        if request.method == "HEAD":
            return Response(response.status_code, response.reason_phrase, response.headers)
        return response


async def _no_websocket(connection: ServerConnection) -> None:
    """Never called: every request is answered."""
