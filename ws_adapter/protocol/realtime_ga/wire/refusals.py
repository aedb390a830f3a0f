"""Refusals and ends of sessions, with the codes of Realtime."""

from typing import Final

from ws_adapter.protocol.realtime_ga.wire.events import Code, type_of
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import (
    CloseCode,
    ErrorCode,
    Refusal,
    UnknownField,
    Verdict,
    WrongType,
)

CODES: Final = {
    ErrorCode.NOT_READY: Code.OVERLOADED,
    ErrorCode.UNKNOWN_EVENT: Code.INVALID_VALUE,
    ErrorCode.MISSING_FIELD: Code.MISSING_PARAMETER,
    ErrorCode.INVALID_PAYLOAD: Code.INVALID_VALUE,
    ErrorCode.INVALID_EVENT: Code.INVALID_VALUE,
    ErrorCode.INVALID_JSON: Code.INVALID_JSON,
    ErrorCode.INVALID_FRAME: Code.INVALID_EVENT,
    ErrorCode.RATE_LIMITED: Code.RATE_LIMITED,
    ErrorCode.UNSUPPORTED_MODE: Code.INVALID_MODEL,
    ErrorCode.UNSUPPORTED_PROTOCOL: Code.BETA_DISABLED,
    ErrorCode.UNAUTHORIZED: Code.INVALID_KEY,
    ErrorCode.RESUME_FAILED: Code.RESUME_FAILED,
    ErrorCode.QUOTA_EXCEEDED: Code.INSUFFICIENT_QUOTA,
    ErrorCode.QUEUE_CANCELLED: Code.OVERLOADED,
    ErrorCode.QUEUE_FULL: Code.OVERLOADED,
    ErrorCode.QUEUE_TIMEOUT: Code.OVERLOADED,
    ErrorCode.SERVICE_UNAVAILABLE: Code.OVERLOADED,
    ErrorCode.WORKER_BUSY: Code.OVERLOADED,
    ErrorCode.WORKER_CONNECT_FAILED: Code.OVERLOADED,
    ErrorCode.INFERENCE_ERROR: Code.INFERENCE_FAILED,
}
"""The code of Realtime for each `ErrorCode`."""

_ENDS: Final = {
    errors.TIMEOUT: (Code.SESSION_EXPIRED, CloseCode.GOING_AWAY),
    errors.BACKEND_ERROR: (Code.INTERNAL, CloseCode.INTERNAL_ERROR),
}
"""The error before the end of a running session, and its close code; other ends have no event."""

SILENT: Final = {errors.SHUTDOWN: Code.OVERLOADED, errors.SLOW_CONSUMER: Code.SLOW_CONSUMER}
"""The codes in the close reason of ends without an event."""


class Denied(Refusal):
    """A refusal with a code of the protocol; a `name` of None is an error without a code."""

    def __init__(self, name: Code | None, message: str, param: str | None = None) -> None:
        super().__init__(ErrorCode.INVALID_PAYLOAD, message, param)
        self.name = name


def code_of(refusal: Refusal) -> Code | None:
    """Return the code of Realtime for a refusal."""
    match refusal:
        case Denied():
            return refusal.name
        case UnknownField():
            return Code.UNKNOWN_PARAMETER
        case WrongType():
            return Code.INVALID_TYPE
    return CODES[refusal.code]


class End(Exception):
    """The close of a connection: an event before it, if any, the close code and the reason."""

    def __init__(self, code: Code | None, message: str, close: CloseCode, reason: str) -> None:
        super().__init__(message)
        self.code, self.message, self.close, self.reason = code, message, close, reason


def end_of(verdict: Verdict) -> End:
    """Return the end for a verdict: the reason is `TYPE.CODE`, which clients parse."""
    close = verdict.close or CloseCode.INTERNAL_ERROR
    if verdict.code is ErrorCode.UNSUPPORTED_MODE:
        close = CloseCode.INVALID_REQUEST
    if close is CloseCode.INVALID_UTF8:
        return End(None, "", close, verdict.message)
    if verdict.code is None and verdict.closed in SILENT:
        return End(None, "", close, _reason(SILENT[verdict.closed]))
    if verdict.code is not None:
        code = CODES[verdict.code]
        if verdict.closed == errors.BACKEND_ERROR:
            code = Code.INTERNAL
        if verdict.code is ErrorCode.QUEUE_CANCELLED:
            close = CloseCode.NORMAL
    else:
        code, close = _ENDS.get(verdict.closed or "", (Code.INTERNAL, close))
    return End(code, verdict.message, close, _reason(code))


def model_end(code: Code, message: str) -> End:
    """Return the end of a session without a model, or with one that is not served."""
    return End(code, message, CloseCode.INVALID_REQUEST, _reason(code))


def opening_end(refusal: Refusal) -> End:
    """Return the end of a session that cannot begin with the settings of its client secret."""
    code = code_of(refusal) or Code.INVALID_VALUE
    return End(code, refusal.message, CloseCode.INVALID_REQUEST, _reason(code))


def _reason(code: Code) -> str:
    return f"{type_of(code)}.{code}"
