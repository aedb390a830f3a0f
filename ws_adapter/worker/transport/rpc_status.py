"""How a gRPC call went, by what HTTP/2 carries of it."""

import base64
import binascii
import re
from typing import Final
from urllib.parse import unquote_to_bytes

from google.rpc import code_pb2

from ws_adapter.worker.transport.http2_stream import Received

CONTENT_TYPE: Final = "application/grpc"

_GRPC: Final = re.compile(re.escape(CONTENT_TYPE) + r"($|[+;])", re.IGNORECASE)
_LONGEST_TYPE: Final = 80
_CODES: Final = {
    b"400": code_pb2.INTERNAL,
    b"401": code_pb2.UNAUTHENTICATED,
    b"403": code_pb2.PERMISSION_DENIED,
    b"404": code_pb2.UNIMPLEMENTED,
    b"429": code_pb2.UNAVAILABLE,
    b"502": code_pb2.UNAVAILABLE,
    b"503": code_pb2.UNAVAILABLE,
    b"504": code_pb2.UNAVAILABLE,
}
"""What an HTTP status means that came without a gRPC status, by gRPC's http-grpc-status-mapping.md."""


class RpcError(Exception):
    """How a call ended. `code` is one of `google.rpc.Code`, `details` a serialised `google.rpc.Status`.

    After `was_refused` the worker has not looked at the call, which may be made again.
    """

    def __init__(self, code: int, message: str, details: bytes = b"", *, was_refused: bool = False) -> None:
        super().__init__(f"{code_pb2.Code.Name(code)}: {message}")
        self.code = code
        self.details = details
        self.was_refused = was_refused


def http_error(headers: Received) -> RpcError | None:
    """What is wrong with the headers of an answer; None if messages follow them."""
    status = headers.get(b":status", b"")
    if status != b"200":
        text = f"the worker answers with HTTP status {status.decode('latin-1')}"
        return RpcError(_CODES.get(status, code_pb2.UNKNOWN), text)
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    if not _GRPC.match(content_type):
        text = f"the worker answers with content of type {content_type[:_LONGEST_TYPE]!r}"
        return RpcError(code_pb2.UNKNOWN, text)
    return None


def status_of(trailers: Received) -> RpcError | None:
    """What the trailers say, which are all of the answer if they come at once; None for OK."""
    if b":status" in trailers and b"grpc-status" not in trailers:
        error = http_error(trailers)
        return error or RpcError(code_pb2.UNKNOWN, "the worker ended a call without a status")
    try:
        code = int(trailers.get(b"grpc-status", b"2"))
        code_pb2.Code.Name(code)
    except ValueError:
        code = code_pb2.UNKNOWN
    if code == code_pb2.OK:
        return None
    message = unquote_to_bytes(trailers.get(b"grpc-message", b"")).decode(errors="replace")
    coded = trailers.get(b"grpc-status-details-bin", b"")
    try:
        details = base64.b64decode(coded + b"=" * (-len(coded) % 4))
    except binascii.Error:
        details = b""
    return RpcError(code, message, details)
