"""The path, metadata types and error of a gRPC call."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import code_pb2

from antiphon.v1 import inference_service_pb2 as pb

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name

_DETAILS: Final = "grpc-status-details-bin"

_REFUSED: Final = "RST_STREAM with error code 7"
"""The text in which grpcio reports REFUSED_STREAM, for which a status has no field."""

Metadata: TypeAlias = Sequence[tuple[str, str]]
Received: TypeAlias = dict[bytes, bytes]
"""The metadata of an answer."""

Response = TypeVar("Response", bound=Message)


class RpcError(Exception):
    """The end of a call with another status than OK.

    `code` is one of `google.rpc.Code`, `details` a serialised `google.rpc.Status`. With `was_refused` the
    worker has not processed the call, so it may be made again.
    """

    def __init__(self, code: int, message: str, details: bytes = b"", *, was_refused: bool = False) -> None:
        super().__init__(f"{code_pb2.Code.Name(code)}: {message}")
        self.code = code
        self.details = details
        self.was_refused = was_refused


def path_of(method: str) -> str:
    """Return the path of a method of `InferenceService`."""
    return f"/{_SERVICE}/{method}"


def error_of(code: grpc.StatusCode, text: str | None, trailers: Any) -> RpcError:
    """Return the error for a grpcio status that is not OK."""
    number = code.value[0]
    details = next((value for key, value in trailers or () if key == _DETAILS), b"")
    was_refused = code is grpc.StatusCode.UNAVAILABLE and _REFUSED in (text or "")
    return RpcError(number, text or "", details, was_refused=was_refused)


def connection_closed() -> RpcError:
    """Return the error of a call whose connection the adapter closes."""
    return RpcError(code_pb2.UNAVAILABLE, "the connection to the worker was closed")
