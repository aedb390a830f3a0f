"""The worker's administration port: `/metrics`, `/healthz`, `/readyz`, and `/`, the status page.

Tornado serves it on the event loop of the sessions. Each connection carries one request, lasts at most
`CONNECTION_S`, and the oldest is closed for a newer one, so idle or slow peers neither pile up nor block a
scrape.
"""

import asyncio
import base64
import errno
import hmac
import json
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.web import Application, RequestHandler, stream_request_body

from antiphon_service.listening import bind_all, failed_address
from antiphon_service.telemetry.port import (
    HTML,
    METRICS_TYPE,
    PAGE_POLICY,
    READ_METHODS,
)
from inference_service.errors import ConfigurationError

MOST_CONNECTIONS: Final = 64
"""Limit of open connections; one more closes the oldest."""

CONNECTION_S: Final = 10.0
"""Lifetime of a connection in seconds, from accept to the last byte of the answer."""

OPEN: Final = ("/healthz", "/readyz")
"""Paths that need no key, because a supervisor has none."""

LONGEST_HEAD: Final = 1 << 15
"""Bytes of a request line with its headers."""

LONGEST_BODY: Final = 16 << 20
"""Bytes of a request body, which is read and discarded so that the sender can read the answer."""

for _name in ("tornado.access", "tornado.general"):
    logging.getLogger(_name).setLevel(logging.ERROR)  # otherwise bad requests of anybody could fill the log


class Refused(Exception):
    """Raised for a request that is answered with an error: status, code, message and further headers."""

    def __init__(self, status: HTTPStatus, code: str, message: str, **headers: str) -> None:
        self.status = status
        self.data = _problem(code, message)
        self.headers = headers


class Administration:
    """The administration server: public health, and a status page and metrics that may need a key.

    `exposition` runs in a thread of its own; it returns nothing if metrics are not exported for scraping.
    `status` returns HTML. `is_ready` returns whether the worker accepts sessions; kubelet's gRPC probe does
    not support TLS, so it uses this port. Callers send `key` as a bearer token or as the password of HTTP
    Basic.
    """

    def __init__(
        self,
        exposition: Callable[[], bytes],
        status: Callable[[], str],
        is_ready: Callable[[], bool],
        key: bytes | None = None,
    ) -> None:
        self._exposition = exposition
        self._status = status
        self._is_ready = is_ready
        self._key = key
        self._server: _Server | None = None
        self._exposing: asyncio.Task[bytes] | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen and return the port. Raises `ConfigurationError` if the address cannot be bound."""
        try:
            sockets = bind_all(host, port)
            for sock in sockets:
                sock.listen(MOST_CONNECTIONS)
        except OSError as error:
            raise ConfigurationError(_cannot_listen(host, port, error)) from None
        application = Application(
            [(".*", _Page, {"administration": self})], log_function=lambda handler: None
        )
        self._server = _Server(
            application,
            no_keep_alive=True,
            max_header_size=LONGEST_HEAD,
            max_body_size=LONGEST_BODY,
            max_buffer_size=LONGEST_BODY,
            idle_connection_timeout=CONNECTION_S,
        )
        self._server.add_sockets(sockets)
        bound: int = sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._server is not None:
            self._server.stop()
            self._server.close_streams()
            await self._server.close_all_connections()

    async def page(self, method: str, path: str, *, has_body: bool) -> tuple[bytes, dict[str, str]]:
        """Return body and headers of a page. Raises `Refused`."""
        if path not in (*OPEN, "/", "/metrics"):
            message = "There is nothing here: see /, /metrics, /healthz and /readyz."
            raise Refused(HTTPStatus.NOT_FOUND, "not_found", message)
        if method not in READ_METHODS:
            raise _method_not_allowed()
        if has_body:
            message = "This page takes no body: send the request without one."
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_not_allowed", message)
        if path == "/":
            return self._status().encode(), {"Content-Type": HTML, "Content-Security-Policy": PAGE_POLICY}
        if path == "/healthz":
            return b'{"status": "ok"}', {"Content-Type": "application/json"}
        if path == "/readyz":
            if not self._is_ready():
                message = "The worker is loading its model or draining."
                raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", message)
            return b'{"status": "ready"}', {"Content-Type": "application/json"}
        exposition = await self._expose()
        if not exposition:
            message = "Metrics are not exported here: see OTEL_METRICS_EXPORTER."
            raise Refused(HTTPStatus.NOT_FOUND, "not_found", message)
        return exposition, {"Content-Type": METRICS_TYPE}

    def check_key(self, authorization: str) -> None:
        """Raise `Refused` unless the header `Authorization` proves the key, or no key is set."""
        if self._key is not None and not hmac.compare_digest(_secret(authorization), self._key):
            message = "The key of --admin-key-file is needed: send it as Authorization: Bearer KEY."
            challenge = {"WWW-Authenticate": 'Basic realm="Antiphon: the key of the worker", charset="UTF-8"'}
            raise Refused(HTTPStatus.UNAUTHORIZED, "unauthorized", message, **challenge)

    async def _expose(self) -> bytes:
        """Return the exposition; concurrent scrapes share one, so that a flood queues no work."""
        if self._exposing is None or self._exposing.done():
            # The exposition takes milliseconds, in which sessions would wait on the event loop.
            self._exposing = asyncio.create_task(asyncio.to_thread(self._exposition))
        return await asyncio.shield(self._exposing)


@stream_request_body
class _Page(RequestHandler):
    """The handler of one request. It discards the body as it arrives."""

    def initialize(self, administration: Administration) -> None:
        self._administration = administration
        self._has_body = False

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")

    def compute_etag(self) -> None:
        """Send no ETag: pages are never stored."""

    def data_received(self, chunk: bytes) -> None:
        self._has_body = True

    async def _answer(self) -> None:
        request = self.request
        try:
            if request.path not in OPEN:
                self._administration.check_key(request.headers.get("Authorization", ""))
            data, headers = await self._administration.page(
                request.method or "", request.path, has_body=self._has_body
            )
        except Refused as refused:
            self._refuse(refused)
            return
        for name, value in headers.items():
            self.set_header(name, value)
        self.finish(data)

    get = head = post = put = patch = delete = options = _answer

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an unknown method, or a fault of the status page or the exposition."""
        if status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            self._refuse(_method_not_allowed())
        else:
            message = "The page could not be rendered: see the worker's log."
            self._refuse(Refused(HTTPStatus(status_code), "internal_error", message))

    def _refuse(self, refused: Refused) -> None:
        self.set_status(refused.status)
        self.set_header("Content-Type", "application/json")
        for name, value in refused.headers.items():
            self.set_header(name, value)
        self.finish(refused.data)


class _Server(HTTPServer):
    """An HTTP server that bounds the number and the lifetime of connections, which Tornado does not."""

    def initialize(self, *args: Any, **kwargs: Any) -> None:
        super().initialize(*args, **kwargs)
        self._streams: dict[IOStream, asyncio.TimerHandle] = {}

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        for known in [known for known in self._streams if known.closed()]:
            self._streams.pop(known).cancel()
        if len(self._streams) >= MOST_CONNECTIONS:
            oldest = next(iter(self._streams))
            self._streams.pop(oldest).cancel()
            oldest.close()
        self._streams[stream] = asyncio.get_running_loop().call_later(CONNECTION_S, stream.close)
        super().handle_stream(stream, address)

    def close_streams(self) -> None:
        """Close every connection at once."""
        for stream, deadline in self._streams.items():
            deadline.cancel()
            stream.close()
        self._streams.clear()


def _problem(code: str, message: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": message}, "detail": message}).encode()


def _method_not_allowed() -> Refused:
    message = f"This page takes {' and '.join(READ_METHODS)} only."
    return Refused(
        HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", message, Allow=", ".join(READ_METHODS)
    )


def _secret(authorization: str) -> bytes:
    """Return the bearer token or the Basic password of the header; empty if it has neither."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except ValueError:
            return b""
    return b""


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"Port {port} is in use by another process{failed_address(error)}. "
            "Choose another with --admin-port, or stop it."
        )
    reason, at = error.strerror or error, failed_address(error) or f" on {host}"
    return f"Cannot listen{at} port {port}: {reason}. Choose another address with --admin-host."
