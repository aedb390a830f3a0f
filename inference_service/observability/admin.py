"""The worker's administration port: `/metrics` for Prometheus, and `/`, the status page for people."""

import asyncio
import errno
from collections.abc import Callable
from http import HTTPStatus

from websockets.datastructures import Headers
from websockets.http11 import Request, Response

from antiphon.telemetry.port import HTML, METRICS_TYPE, PAGE_POLICY, READING, Port
from inference_service.errors import ConfigurationError

_TEXT = "text/plain; charset=utf-8"


class Administration:
    """Serves two pages, made anew for each request. Whoever reaches the port may read them.

    `exposition` is called on a thread of its own; an empty one says that metrics are not scraped.
    """

    def __init__(self, exposition: Callable[[], bytes], status: Callable[[], str]) -> None:
        self._exposition = exposition
        self._status = status
        self._port = Port(self._answer)

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port. Raises `ConfigurationError` if that is impossible."""
        try:
            return await self._port.start(host, port)
        except OSError as error:
            raise ConfigurationError(_cannot_listen(host, port, error)) from None

    async def close(self) -> None:
        """Stops listening."""
        await self._port.close()

    async def _answer(self, request: Request, peer: str) -> Response:
        path = request.path.partition("?")[0]
        if path not in ("/", "/metrics"):
            return _response(HTTPStatus.NOT_FOUND, "There is nothing here: see / and /metrics.\n")
        if request.method not in READING:
            message = f"This page takes {' and '.join(READING)} only.\n"
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, message, Allow=", ".join(READING))
        if path == "/":
            return _response(HTTPStatus.OK, self._status(), HTML, Content_Security_Policy=PAGE_POLICY)
        # Many series take a while to write down: not while sessions wait.
        exposition = await asyncio.to_thread(self._exposition)
        if not exposition:
            return _response(HTTPStatus.NOT_FOUND, "Metrics go elsewhere: see OTEL_METRICS_EXPORTER.\n")
        return _response(HTTPStatus.OK, exposition.decode(), METRICS_TYPE)


def _response(status: HTTPStatus, text: str, content_type: str = _TEXT, **headers: str) -> Response:
    """Underscores in names of headers stand for hyphens."""
    body = text.encode()
    fields = Headers(
        {
            "Content-Type": content_type,
            "Content-Length": str(len(body)),
            "Connection": "close",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
        }
    )
    for name, value in headers.items():
        fields[name.replace("_", "-")] = value
    return Response(status.value, status.phrase, fields, body)


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is in use by another process. Choose another with --admin-port, or stop it."
    reason = error.strerror or error
    return f"Cannot listen on {host} port {port}: {reason}. Choose another address with --admin-host."
