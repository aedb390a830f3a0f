"""The administration port, with pages that only an operator may see."""

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

from websockets.http11 import Response

from antiphon_service.semconv import Rejection
from antiphon_service.telemetry.port import (
    HTML,
    METRICS_TYPE,
    OPEN_TIMEOUT_S,
    PAGE_POLICY,
    READ_METHODS,
)
from antiphon_service.telemetry.providers import Telemetry
from ws_adapter.access.http.access import Access, Denied
from ws_adapter.observability.snapshot import Snapshot
from ws_adapter.observability.status import read_status
from ws_adapter.observability.status_page import DRAIN, render, render_drain
from ws_adapter.pages import responses
from ws_adapter.process.errors import CannotListen
from ws_adapter.web.http1 import HttpRequest
from ws_adapter.web.http_exchange import HttpServer

logger = logging.getLogger(__name__)

_NEEDS_KEYS: Final = (
    "through a proxy this needs the key of an admin; the adapter has no keys: pass --auth keys"
)


class Administration:
    """The server of `/metrics`, the status page and its figures on a separate port; with keys, for admins."""

    def __init__(
        self, access: Access, snapshot: Snapshot, telemetry: Telemetry, drain: Callable[[], None]
    ) -> None:
        """`drain` starts the graceful shutdown of the adapter."""
        self._drain = drain
        self._access = access
        self._snapshot = snapshot
        self._telemetry = telemetry
        self._server = HttpServer(self._respond, OPEN_TIMEOUT_S)

    async def start(self, host: str, port: int, *, reuse: bool = False) -> int:
        """Listen, with `reuse` on a shared port; return the port. Raises `CannotListen`."""
        try:
            return await self._server.start(host, port, reuse=reuse)
        except OSError as error:
            raise CannotListen("--admin-port", host, port, error) from error

    def leave(self) -> None:
        """Stop listening on a shared port."""
        self._server.leave()

    async def close(self) -> None:
        """Stop listening."""
        await self._server.close()

    async def _respond(self, request: HttpRequest, peer: str) -> Response:
        try:
            response = await self._answer(request, peer)
        except Denied as denied:
            response = denied.response
        except Exception:
            logger.exception("request to the administration port failed")
            response = responses.refused(HTTPStatus.INTERNAL_SERVER_ERROR)
        return responses.without_body(response) if request.method == "HEAD" else response

    async def _answer(self, request: HttpRequest, peer: str) -> Response:
        if request.fault is not None:
            return responses.unreadable(request.fault)
        path = request.path.partition("?")[0]
        if path not in ("/", "/metrics", "/status.json", DRAIN):
            return responses.not_found()
        caller = self._access.caller(request, peer)
        self._access.check_origin(request, caller)
        key = self._access.identify(request, admin=True, by_password=True)
        if key is None and not caller.is_local:
            raise Denied(Rejection.AUTH, responses.forbidden(_NEEDS_KEYS))
        allowed = (*READ_METHODS, "POST") if path == DRAIN else READ_METHODS
        if request.method not in allowed:
            return responses.method_not_allowed(*allowed)
        if request.refused_body is not None:
            return responses.body_refused(request.refused_body, *allowed)
        if request.method == "POST":
            return self._start_drain(request)
        await self._snapshot.refresh()
        if path == "/metrics":
            # Serialising hundreds of series would block the event loop.
            exposition = await asyncio.to_thread(self._telemetry.exposition)
            return responses.text(HTTPStatus.OK, exposition, METRICS_TYPE)
        status = read_status(self._snapshot)
        if path == "/status.json":
            return responses.answer(HTTPStatus.OK, status)
        page = render_drain(status) if path == DRAIN else render(status)
        return responses.text(HTTPStatus.OK, page.encode(), HTML, Content_Security_Policy=PAGE_POLICY)

    def _start_drain(self, request: HttpRequest) -> Response:
        """Start a drain. Pages of other origins are refused, also those of another port of this machine."""
        hosts = request.headers.get_all("Host")
        if any([origin.partition("://")[2]] != hosts for origin in request.headers.get_all("Origin")):
            raise Denied(
                Rejection.ORIGIN, responses.forbidden("only the status page itself may start a drain")
            )
        logger.warning("drain requested on the status page")
        self._drain()
        return responses.text(HTTPStatus.SEE_OTHER, b"", HTML, Location="/")
