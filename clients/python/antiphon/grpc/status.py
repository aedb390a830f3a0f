"""Conversion of gRPC statuses to exceptions."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.rpc import error_details_pb2, status_pb2

from antiphon.contract import Reason
from antiphon.errors import AntiphonError, AuthError, ConnectError, ProtocolError, QueueFull, SessionClosed

_DETAILS_KEY: Final = "grpc-status-details-bin"

_CALLERS_FAULT: Final = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.ALREADY_EXISTS,
        grpc.StatusCode.FAILED_PRECONDITION,
    }
)
_TRANSPORT: Final = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED}
)
_NO_ROOM: Final = frozenset({Reason.NO_FREE_SLOT, Reason.QUEUE_FULL})
_OTHER_WORKER: Final = frozenset({Reason.LOADING, Reason.DRAINING, Reason.ATTACH_TIMEOUT})
_CALLERS_LIMIT: Final = frozenset({Reason.UNIT_WINDOW, Reason.MESSAGE_TOO_LARGE})


@dataclass(frozen=True)
class Status:
    """The status of a call that ended."""

    code: grpc.StatusCode
    message: str
    reason: str
    """The reason of the ErrorInfo; empty without one."""
    field: str | None
    """The first field that a BadRequest names."""

    @classmethod
    def of(cls, code: grpc.StatusCode, message: str, trailers: Iterable[tuple[str, Any]]) -> "Status":
        """Read the details that a worker puts into the trailing metadata."""
        reason, field = "", None
        for key, value in trailers:
            if key == _DETAILS_KEY:
                reason, field = _details(value)
        return cls(code, message, reason, field)

    @property
    def weight(self) -> int:
        """The amount of information in the status.

        gRPC makes up a status for a stream to which it was writing when the session ended.
        """
        if self.reason:
            return 3
        if self.code is grpc.StatusCode.OK:
            return 0
        return 2 if self.code is grpc.StatusCode.UNAVAILABLE else 1

    def error(self, target: str, ready: bool) -> AntiphonError:
        """Return the exception to raise; `ready` says whether the session had begun."""
        reason = self.reason or self._reason_of_transport()
        number: int = self.code.value[0]
        if reason in _NO_ROOM:
            return QueueFull(self.message, reason=reason)
        if self.code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return AuthError(self.message, reason=reason, retryable=True)
        if self.code in _CALLERS_FAULT or reason in _CALLERS_LIMIT:
            return ProtocolError(self.message, reason=reason, param=self.field)
        if ready:
            return SessionClosed(reason, number, message=self.message)
        if reason == Reason.WORKER_LOST:
            return ConnectError(
                f"No worker answers at {target}: {self.message}", reason=reason, retryable=True
            )
        return ConnectError(self.message, reason=reason, retryable=reason in _OTHER_WORKER)

    def _reason_of_transport(self) -> str:
        """Return the contract's name for a status that gRPC made itself.

        A stream that breaks during a write ends with "INTERNAL: Internal error from Core"; a worker's own
        INTERNAL always has an ErrorInfo. A call that a server accepts while it stops ends with CANCELLED.
        """
        if self.code in _TRANSPORT:
            return Reason.WORKER_LOST
        if self.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return Reason.MESSAGE_TOO_LARGE
        return self.code.name


def _details(value: bytes) -> tuple[str, str | None]:
    status = status_pb2.Status.FromString(value)
    info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    field = None
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(request.DESCRIPTOR):
            detail.Unpack(request)
            field = next((violation.field for violation in request.field_violations), None)
    return info.reason, field
