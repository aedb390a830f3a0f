"""The reason of a gRPC status."""

from typing import Final

from google.protobuf.message import DecodeError
from google.rpc import code_pb2, error_details_pb2, status_pb2

from antiphon.contract import ERROR_DOMAIN, Reason
from ws_adapter.worker.transport.rpc import RpcError

_WITHOUT_DETAILS: Final = {
    # gRPC itself refuses a message that is too large.
    code_pb2.RESOURCE_EXHAUSTED: Reason.MESSAGE_TOO_LARGE,
    # The adapter's deadline of the call, the last backstop of the session limit.
    code_pb2.DEADLINE_EXCEEDED: Reason.SESSION_LIMIT,
}


def reason_of(error: RpcError) -> Reason:
    """Return why a call ended: from the worker's ErrorInfo if there is one, else from the code."""
    if (info := _info(error)) is not None:
        return Reason(info.reason)
    return _WITHOUT_DETAILS.get(error.code, Reason.WORKER_LOST)


def worker_of(error: RpcError) -> str:
    """Return the id of the worker that ended a call; empty if unknown."""
    info = _info(error)
    return info.metadata.get("worker_id", "") if info is not None else ""


def _info(error: RpcError) -> error_details_pb2.ErrorInfo | None:
    try:
        status = status_pb2.Status.FromString(error.details)
    except DecodeError:
        status = status_pb2.Status()
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == ERROR_DOMAIN and info.reason in list(Reason):
            return info
    return None
