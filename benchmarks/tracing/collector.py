"""A collector of spans on loopback that receives OTLP over HTTP and stores it.

`python -m benchmarks.tracing.collector` prints `ready on <address>` and answers each line on its standard
input with the number of spans so far.
"""

import gzip
import sys
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

PATH: Final = "/v1/traces"


class Collector:
    """A context manager with an OTLP server on a free loopback port."""

    def __init__(self) -> None:
        self._bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path == PATH:
                    collector._bodies.append(body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(HTTPStatus.OK if self.path == PATH else HTTPStatus.NOT_FOUND)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Do not log requests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="collector", daemon=True)

    @property
    def endpoint(self) -> str:
        """The URL for OTEL_EXPORTER_OTLP_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def raw(self) -> bytes:
        """The bodies of all requests so far, joined."""
        return b"".join(self._bodies)

    def resources(self) -> list[ResourceSpans]:
        """Return the resource spans of all requests so far."""
        requests = (ExportTraceServiceRequest.FromString(body) for body in list(self._bodies))
        return [resource for request in requests for resource in request.resource_spans]

    def spans(self) -> Iterator[Span]:
        """Yield every span so far."""
        for resource in self.resources():
            for scope in resource.scope_spans:
                yield from scope.spans


def main() -> None:
    """Collect until standard input ends."""
    with Collector() as collector:
        print(f"ready on {collector.endpoint}", flush=True)
        for _ in sys.stdin:
            print(sum(1 for _ in collector.spans()), flush=True)


if __name__ == "__main__":
    main()
