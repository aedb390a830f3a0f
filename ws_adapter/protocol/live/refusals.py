"""Refusals and ends of sessions, with the codes of Live."""

from typing import Final, Literal, TypeAlias

from ws_adapter.protocol.live.events import UNSERVED, Code
from ws_adapter.protocol.live.settings import UnknownModel, Unsupported
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import ErrorCode, Refusal, UnknownField, Verdict

Reason: TypeAlias = Literal["close_requested", "expired", "content", "remote_hangup", "connection_lost"]

CODES: Final = {
    ErrorCode.NOT_READY: Code.NOT_STARTED,
    ErrorCode.UNKNOWN_EVENT: Code.INVALID_VALUE,
    ErrorCode.MISSING_FIELD: Code.MISSING_PARAMETER,
    ErrorCode.INVALID_PAYLOAD: Code.INVALID_VALUE,
    ErrorCode.INVALID_EVENT: Code.ALREADY_STARTED,
    ErrorCode.INVALID_JSON: Code.INVALID_JSON,
    ErrorCode.INVALID_FRAME: Code.INVALID_FRAME,
    ErrorCode.RATE_LIMITED: Code.RATE_LIMITED,
    ErrorCode.UNSUPPORTED_MODE: Code.UNSUPPORTED_MODE,
    ErrorCode.UNAUTHORIZED: Code.INVALID_KEY,
    ErrorCode.RESUME_FAILED: Code.RESUME_FAILED,
    ErrorCode.QUOTA_EXCEEDED: Code.INSUFFICIENT_QUOTA,
    ErrorCode.QUEUE_CANCELLED: Code.QUEUE_CANCELLED,
    ErrorCode.QUEUE_FULL: Code.QUEUE_FULL,
    ErrorCode.QUEUE_TIMEOUT: Code.QUEUE_TIMEOUT,
    ErrorCode.SERVICE_UNAVAILABLE: Code.UNAVAILABLE,
    ErrorCode.WORKER_BUSY: Code.UNAVAILABLE,
    ErrorCode.WORKER_CONNECT_FAILED: Code.UNAVAILABLE,
    ErrorCode.INFERENCE_ERROR: Code.INFERENCE_FAILED,
}
"""The code of Live for each `ErrorCode`."""

_ENDS: Final[dict[str, tuple[Code | None, Reason]]] = {
    errors.USER_STOP: (None, "close_requested"),
    errors.TIMEOUT: (None, "expired"),
    errors.CONTEXT_FULL: (Code.CONTEXT_FULL, "expired"),
    errors.SHUTDOWN: (Code.UNAVAILABLE, "connection_lost"),
    errors.BACKEND_ERROR: (Code.INFERENCE_FAILED, "connection_lost"),
    errors.SLOW_CONSUMER: (Code.SLOW_CONSUMER, "connection_lost"),
}
"""For each end of a session: the code of an error before it, and the reason in `session.closed`."""


def code_of(refusal: Refusal) -> Code:
    """Return the code of Live for a refusal."""
    match refusal:
        case UnknownField():
            return Code.UNKNOWN_PARAMETER
        case UnknownModel():
            return Code.MODEL_NOT_FOUND
        case Unsupported():
            return Code.UNSUPPORTED
    return CODES[refusal.code]


def unserved(refusal: Refusal) -> Refusal:
    """Return the refusal; for an event of the protocol that is not served, return one with the reason."""
    why = UNSERVED.get(refusal.unknown_event or "")
    return Unsupported("type", why) if why is not None else refusal


def code_of_end(verdict: Verdict) -> Code | None:
    """Return the code of the error before an end; None without one."""
    if verdict.code is not None:
        return CODES[verdict.code]
    return _ENDS[verdict.closed][0] if verdict.closed is not None else None


def reason_of(verdict: Verdict) -> Reason | None:
    """Return the reason in `session.closed` of a running session; None if no such event is sent."""
    return _ENDS[verdict.closed][1] if verdict.closed is not None else None
