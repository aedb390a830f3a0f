"""The public side: WebSockets and a few HTTP pages on one port."""

import asyncio
import logging
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from ws_adapter import pages
from ws_adapter.clock import Clock, sleep
from ws_adapter.codec import encode
from ws_adapter.connection import WRITE_LIMIT, Disconnected, PublicConnection
from ws_adapter.dialects import errors, render
from ws_adapter.dialects.errors import Verdict
from ws_adapter.dialects.realtime import RealtimeDuplex
from ws_adapter.dispatch.base import POOL, Dispatcher
from ws_adapter.fleet import Fleet
from ws_adapter.options import AdapterOptions
from ws_adapter.routes import SUBPROTOCOL, Page, find_page, refuse_mode
from ws_adapter.session import CLOSE_TIMEOUT_S, Session

_quiet = logging.getLogger(f"{__name__}.websockets")
_quiet.setLevel(logging.WARNING)  # sessions have their own two lines

OPEN_TIMEOUT_S: Final = 5.0
PING_S: Final = 20.0
RECEIVE_QUEUE: Final = 4
SEND_BUFFER_BYTES: Final = 128 * 1024
"""The kernel's share of what is sent and not yet read: what is hidden there cannot be taken back."""

SPREAD_S: Final = 30.0
"""Sessions that outlast the drain end one after another over this time, so that clients return one by one."""


def new_id(prefix: str) -> str:
    """`prefix`, an underscore and 12 hexadecimal digits."""
    return f"{prefix}_{secrets.token_hex(6)}"


class PublicServer:
    """Serves until it is drained and closed."""

    def __init__(self, options: AdapterOptions, dispatcher: Dispatcher, fleet: Fleet, clock: Clock) -> None:
        self._options = options
        self._dispatcher = dispatcher
        self._fleet = fleet
        self._clock = clock
        self._sessions: set[Session] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._draining = False
        self._server: Server | None = None

    async def start(self) -> str:
        """Listens; returns the address for clients, `http://host:port`. Raises OSError if it cannot."""
        self._server = await serve(
            self._serve,
            self._options.host,
            self._options.port,
            process_request=self._respond,
            select_subprotocol=_select_subprotocol,
            compression=None,
            server_header=None,
            open_timeout=OPEN_TIMEOUT_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            close_timeout=CLOSE_TIMEOUT_S,
            max_size=self._options.max_message_bytes,
            max_queue=RECEIVE_QUEUE,
            write_limit=WRITE_LIMIT,
            logger=_quiet,
            create_connection=PublicConnection,
        )
        for listener in self._server.sockets:
            # Connections inherit it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    async def drain(self) -> None:
        """Turns newcomers and waiting clients away; lets sessions go on for `drain_timeout_s`, then ends
        them.

        Returns when the last one is gone.
        """
        self._draining = True
        for session in [session for session in self._sessions if session.is_queued]:
            session.shut_down()
        spread = min(SPREAD_S, self._options.drain_timeout_s / 2)
        await self._until_empty(self._options.drain_timeout_s - spread)
        left = list(self._sessions)
        for session in left:
            await self._until_empty(spread / len(left))
            session.shut_down()
        await self._empty.wait()

    async def close(self) -> None:
        """Ends whatever is left at once and stops listening."""
        self._draining = True
        for session in list(self._sessions):
            session.shut_down()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._empty.wait()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _until_empty(self, seconds: float) -> None:
        over = asyncio.create_task(sleep(self._clock, seconds))
        empty = asyncio.create_task(self._empty.wait())
        try:
            await asyncio.wait({over, empty}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            empty.cancel()

    # -------------------------------------------------------------------------------------- HTTP

    async def _respond(self, connection: ServerConnection, request: Request) -> Response | None:
        """An HTTP answer, or None to upgrade to a WebSocket."""
        page = find_page(request.path)
        if page is None:
            return pages.not_found()
        if request.method != "GET":
            return pages.method_not_allowed()
        match page:
            case Page.HEALTH:
                return pages.health()
            case Page.READY:
                return pages.readiness(await self._dispatcher.status(POOL), self._draining)
            case Page.VERSION:
                return pages.versions()
            case Page.REALTIME:
                upgrade = request.headers.get("Upgrade", "").lower()
                return None if upgrade == "websocket" else pages.upgrade_required()

    # --------------------------------------------------------------------------------- WebSocket

    async def _serve(self, connection: ServerConnection) -> None:
        assert isinstance(connection, PublicConnection)
        assert connection.request is not None
        verdict = refuse_mode(connection.request.path, _offered(connection.request))
        if verdict is None and self._draining:
            verdict = errors.SHUTTING_DOWN
        if verdict is not None:
            await _refuse(connection, verdict)
            return
        session_id = new_id("sess")
        dialect = RealtimeDuplex(session_id, self._options.limits, self._fleet.catalogue, new_id)
        session = Session(
            connection, session_id, dialect, self._dispatcher, self._fleet, self._clock, self._options
        )
        self._sessions.add(session)
        self._empty.clear()
        try:
            await session.run()
        finally:
            self._sessions.discard(session)
            if not self._sessions:
                self._empty.set()


async def _refuse(connection: PublicConnection, verdict: Verdict) -> None:
    assert verdict.code is not None
    assert verdict.close is not None
    with suppress(Disconnected):
        await connection.send_text(encode(render.error(verdict.code, verdict.message)))
        await connection.close(verdict.close, verdict.code)


def _offered(request: Request) -> list[str]:
    values = ",".join(request.headers.get_all("Sec-WebSocket-Protocol"))
    return [name.strip() for name in values.split(",") if name.strip()]


def _select_subprotocol(
    connection: ServerConnection, subprotocols: Sequence[Subprotocol]
) -> Subprotocol | None:
    """`realtime` if it is offered, whatever stands beside it."""
    return Subprotocol(SUBPROTOCOL) if SUBPROTOCOL in subprotocols else None
