"""The worker's administration port: `/metrics` for Prometheus, `/healthz` and `/readyz` for a supervisor, and
`/`, the status page for people."""

import asyncio
import errno
import json
import re
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus

from antiphon.telemetry.port import HTML, METRICS_TYPE, OPEN_TIMEOUT_S, PAGE_POLICY, READING
from inference_service.errors import ConfigurationError

LONGEST_HEAD = 1 << 15
"""Bytes of a request before its body."""
LONGEST_BODY = 16 << 20
"""Bytes of a body that are read, and thrown away, so that its sender gets to read the answer."""
LINGER_S = 2.0
"""How long its sender may take over that."""
_REQUEST = re.compile(rb"([-!#$%&'*+.^_`|~0-9A-Za-z]+) (\S+) HTTP/1\.[01]\r\n(.*)\r\n", re.DOTALL)
_BODY = re.compile(rb"^(transfer-encoding:|content-length:[ \t]*0*[1-9])", re.IGNORECASE | re.MULTILINE)


class Refused(Exception):
    """A request that gets no page: its status and why, and further headers."""

    def __init__(self, status: HTTPStatus, code: str, message: str, **headers: str) -> None:
        self.status = status
        self.data = json.dumps({"error": {"code": code, "message": message}, "detail": message}).encode()
        self.headers = headers


class Administration:
    """Serves four pages, made anew for each request. Whoever reaches the port may read them.

    A request of any method, with or without a body, has an answer: JSON if it is no page. `exposition` is
    called on a thread of its own; an empty one says that metrics are not scraped. `is_ready` says whether the
    worker takes sessions: kubelet's own gRPC probe speaks no TLS, so it asks here.
    """

    def __init__(
        self, exposition: Callable[[], bytes], status: Callable[[], str], is_ready: Callable[[], bool]
    ) -> None:
        self._exposition = exposition
        self._status = status
        self._is_ready = is_ready
        self._server: asyncio.Server | None = None
        self._answering: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port. Raises `ConfigurationError` if that is impossible."""
        try:
            self._server = await asyncio.start_server(self._accept, host, port, limit=LONGEST_HEAD)
        except OSError as error:
            raise ConfigurationError(_cannot_listen(host, port, error)) from None
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def close(self) -> None:
        """Stops listening, and answering."""
        if self._server is not None:
            self._server.close()
            for task in self._answering:
                task.cancel()
            await asyncio.gather(*self._answering, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request and its answer; a client that goes gets none."""
        try:
            with suppress(ConnectionError, TimeoutError):
                answer = await self._answered(reader)
                async with asyncio.timeout(LINGER_S):
                    writer.write(answer)
                    writer.write_eof()
                    await writer.drain()
                    left = LONGEST_BODY if answer else 0
                    while left > 0 and (data := await reader.read(LONGEST_HEAD)):
                        left -= len(data)
        finally:
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader) -> bytes:
        """The whole answer; empty for a client that asks nothing."""
        method = ""
        try:
            method, path, has_body = await _request(reader)
            status, data, headers = await self._page(method, path, has_body)
        except EOFError:
            return b""
        except Refused as refused:
            status, data = refused.status, refused.data
            headers = {"Content-Type": "application/json", **refused.headers}
        fields = {
            "Content-Length": str(len(data)),
            "Connection": "close",
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            **headers,
        }
        head = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{k}: {v}" for k, v in fields.items())]
        return "\r\n".join([*head, "", ""]).encode() + (b"" if method == "HEAD" else data)

    async def _page(self, method: str, path: str, has_body: bool) -> tuple[HTTPStatus, bytes, dict[str, str]]:
        """Status, data and headers of a page. Raises `Refused`."""
        if path not in ("/", "/metrics", "/healthz", "/readyz"):
            message = "There is nothing here: see /, /metrics, /healthz and /readyz."
            raise Refused(HTTPStatus.NOT_FOUND, "not_found", message)
        if method not in READING:
            message = f"This page takes {' and '.join(READING)} only."
            allowed = ", ".join(READING)
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "method_not_allowed", message, Allow=allowed)
        if has_body:
            message = "This page takes no body: send the request without one."
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_not_allowed", message)
        if path == "/":
            policy = {"Content-Type": HTML, "Content-Security-Policy": PAGE_POLICY}
            return HTTPStatus.OK, self._status().encode(), policy
        if path == "/healthz":
            return HTTPStatus.OK, b'{"status": "ok"}', {"Content-Type": "application/json"}
        if path == "/readyz":
            if not self._is_ready():
                message = "The worker loads its model or drains."
                raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "not_ready", message)
            return HTTPStatus.OK, b'{"status": "ready"}', {"Content-Type": "application/json"}
        # Many series take a while to write down: not while sessions wait.
        exposition = await asyncio.to_thread(self._exposition)
        if not exposition:
            message = "Metrics go elsewhere: see OTEL_METRICS_EXPORTER."
            raise Refused(HTTPStatus.NOT_FOUND, "not_found", message)
        return HTTPStatus.OK, exposition, {"Content-Type": METRICS_TYPE}


async def _request(reader: asyncio.StreamReader) -> tuple[str, str, bool]:
    """Method, path, and whether a body comes. Raises `Refused`, and `EOFError` if nothing comes."""
    try:
        async with asyncio.timeout(OPEN_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        message = f"No whole request came within {OPEN_TIMEOUT_S:g} s."
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, "request_timeout", message) from None
    except asyncio.LimitOverrunError:
        status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
        message = f"The head of a request may have at most {LONGEST_HEAD} bytes."
        raise Refused(status, "headers_too_large", message) from None
    except asyncio.IncompleteReadError as incomplete:
        if not incomplete.partial:
            raise
        head = b""
    match = _REQUEST.fullmatch(head)
    if match is None:
        raise Refused(HTTPStatus.BAD_REQUEST, "invalid_request", "This is no valid request of HTTP/1.1.")
    method, target, headers = match.groups()
    path = target.partition(b"?")[0].decode("ascii", "replace")
    return method.decode(), path, _BODY.search(headers) is not None


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is in use by another process. Choose another with --admin-port, or stop it."
    reason = error.strerror or error
    return f"Cannot listen on {host} port {port}: {reason}. Choose another address with --admin-host."
