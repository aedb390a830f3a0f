"""Rejections of DispatchService, as gRPC statuses."""

import math
from typing import Any, Final

import grpc
import msgspec
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from antiphon.contract import ERROR_DOMAIN, AcquireReason
from antiphon_service.semconv import Rejection
from ws_adapter.access.http.access import Denied
from ws_adapter.process.errors import (
    DispatchError,
    QueueFull,
    QuotaSpent,
    SlotLimit,
    WaitCancelled,
    WaitExpired,
)

_RETRY_S: Final = 1.0

_Code = grpc.StatusCode

_CODES: Final = {
    AcquireReason.KEY_REFUSED: _Code.UNAUTHENTICATED,
    AcquireReason.NOT_ALLOWED: _Code.PERMISSION_DENIED,
    AcquireReason.RATE_LIMITED: _Code.RESOURCE_EXHAUSTED,
    AcquireReason.PAYLOAD_INVALID: _Code.INVALID_ARGUMENT,
    AcquireReason.QUEUE_FULL: _Code.RESOURCE_EXHAUSTED,
    AcquireReason.WAIT_EXPIRED: _Code.DEADLINE_EXCEEDED,
    AcquireReason.WAIT_CANCELLED: _Code.ABORTED,
    AcquireReason.NO_WORKER: _Code.UNAVAILABLE,
    AcquireReason.DRAINING: _Code.UNAVAILABLE,
    AcquireReason.SLOT_LIMIT: _Code.RESOURCE_EXHAUSTED,
    AcquireReason.QUOTA_EXCEEDED: _Code.RESOURCE_EXHAUSTED,
}

_RETRIED: Final = frozenset(
    {AcquireReason.QUEUE_FULL, AcquireReason.NO_WORKER, AcquireReason.DRAINING, AcquireReason.SLOT_LIMIT}
)
"""Reasons after which a retry may succeed soon."""

_QUEUE_REASONS: Final[dict[type[DispatchError], AcquireReason]] = {
    QueueFull: AcquireReason.QUEUE_FULL,
    SlotLimit: AcquireReason.SLOT_LIMIT,
    QuotaSpent: AcquireReason.QUOTA_EXCEEDED,
    WaitExpired: AcquireReason.WAIT_EXPIRED,
    WaitCancelled: AcquireReason.WAIT_CANCELLED,
}


class Refused(Exception):
    """A call ends without a slot. `field` names the invalid request field; `retry_s` is in seconds."""

    def __init__(
        self, reason: AcquireReason, message: str, *, field: str = "", retry_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.field = field
        self.retry_s = _RETRY_S if retry_s is None and reason in _RETRIED else retry_s

    @classmethod
    def by_queue(cls, error: DispatchError) -> "Refused":
        """Convert an error of the dispatcher."""
        return cls(_QUEUE_REASONS.get(type(error), AcquireReason.NO_WORKER), str(error))

    @classmethod
    def by_access(cls, denied: Denied) -> "Refused":
        """Convert a rejection by access control, which a WebSocket gets as an HTTP response."""
        message = msgspec.json.decode(denied.response.body or b"{}")["detail"]
        if denied.reason is Rejection.QUOTA:
            wait_s = float(denied.response.headers["Retry-After"])
            return cls(AcquireReason.QUOTA_EXCEEDED, message, retry_s=wait_s)
        if denied.reason is Rejection.RATE:
            wait_s = float(denied.response.headers["Retry-After"])
            return cls(AcquireReason.RATE_LIMITED, message, retry_s=wait_s)
        return cls(AcquireReason.KEY_REFUSED, message)

    def end_call(self, context: "grpc.aio.ServicerContext[Any, Any]") -> None:
        """Set this as the status of a call; its handler must return right afterwards."""
        code = _CODES[self.reason]
        status = status_pb2.Status(code=code.value[0], message=self.message)
        for detail in self._details():
            packed = AnyMessage()
            packed.Pack(detail)
            status.details.append(packed)
        made = rpc_status.to_status(status)
        context.set_code(made.code)
        context.set_details(made.details)
        context.set_trailing_metadata(made.trailing_metadata)

    def _details(self) -> list[Message]:
        details: list[Message] = [error_details_pb2.ErrorInfo(reason=self.reason, domain=ERROR_DOMAIN)]
        if self.field:
            violation = error_details_pb2.BadRequest.FieldViolation(
                field=self.field, description=self.message
            )
            details.append(error_details_pb2.BadRequest(field_violations=[violation]))
        if self.retry_s is not None:
            details.append(error_details_pb2.RetryInfo(retry_delay=Duration(seconds=math.ceil(self.retry_s))))
        return details
