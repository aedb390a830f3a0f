"""The reason behind a gRPC status."""

from typing import Final

import grpc
import grpc.aio
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from antiphon.semconv import ERROR_DOMAIN, Reason

_WITHOUT_DETAILS: Final = {
    # The client library itself refuses a message that is too large.
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.MESSAGE_TOO_LARGE,
    # Our own deadline on the call, the last backstop of the session limit.
    grpc.StatusCode.DEADLINE_EXCEEDED: Reason.SESSION_LIMIT,
}


def reason_of(error: grpc.aio.AioRpcError) -> Reason:
    """Why a call ended: its ErrorInfo if the worker gave one, else what the code alone can mean."""
    try:
        status = rpc_status.from_call(error)
    except ValueError:
        status = None
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN and info.reason in list(Reason):
            return Reason(info.reason)
    return _WITHOUT_DETAILS.get(error.code(), Reason.WORKER_LOST)
