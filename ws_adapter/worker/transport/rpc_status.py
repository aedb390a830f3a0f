"""How a gRPC call went, by what HTTP/2 carries of it."""

import base64
import binascii
from typing import Final
from urllib.parse import unquote_to_bytes

from google.rpc import code_pb2

from antiphon.http2.grpc import is_grpc
from ws_adapter.worker.transport.channel import Received, RpcError

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


def http_error(headers: Received) -> RpcError | None:
    """What is wrong with the headers of an answer; None if messages follow them."""
    status = headers.get(b":status", b"")
    if status != b"200":
        text = f"the worker answers with HTTP status {status.decode('latin-1')}"
        return RpcError(_CODES.get(status, code_pb2.UNKNOWN), text)
    content_type = headers.get(b"content-type", b"").decode("latin-1")
    if not is_grpc(content_type):
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
