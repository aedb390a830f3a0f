"""Errors of the chat turn in the form of OpenAI's HTTP interface."""

from http import HTTPStatus
from typing import Final, NamedTuple

from ws_adapter.protocol.completions.events import Error, ErrorBody
from ws_adapter.protocol.wire.errors import ErrorCode

RETRY_S: Final = 5
"""Seconds until a retry if the server has no room; OpenAI's SDK waits this long."""


class Answered(NamedTuple):
    """An error as an HTTP answer."""

    status: HTTPStatus
    type: str


_BAD: Final = Answered(HTTPStatus.BAD_REQUEST, "invalid_request_error")
_FAILED: Final = Answered(HTTPStatus.INTERNAL_SERVER_ERROR, "server_error")
_BUSY: Final = Answered(HTTPStatus.SERVICE_UNAVAILABLE, "server_error")
_LIMITED: Final = Answered(HTTPStatus.TOO_MANY_REQUESTS, "rate_limit_error")

_ANSWERS: Final = {
    ErrorCode.INFERENCE_ERROR: _FAILED,
    ErrorCode.QUEUE_FULL: _LIMITED,
    ErrorCode.RATE_LIMITED: _LIMITED,
    ErrorCode.QUOTA_EXCEEDED: _LIMITED,
    ErrorCode.QUEUE_TIMEOUT: _BUSY,
    ErrorCode.QUEUE_CANCELLED: _BUSY,
    ErrorCode.SERVICE_UNAVAILABLE: _BUSY,
    ErrorCode.WORKER_BUSY: _BUSY,
    ErrorCode.WORKER_CONNECT_FAILED: _BUSY,
    ErrorCode.UNAUTHORIZED: Answered(HTTPStatus.UNAUTHORIZED, "authentication_error"),
    ErrorCode.INIT_TIMEOUT: Answered(HTTPStatus.REQUEST_TIMEOUT, "invalid_request_error"),
}


_NAMES: Final = {ErrorCode.QUOTA_EXCEEDED: "insufficient_quota"}
"""Codes with a name of their own in OpenAI's interface."""


def answered(code: ErrorCode) -> Answered:
    """Return the status and the type of an error."""
    return _ANSWERS.get(code, _BAD)


def error(code: ErrorCode, message: str, param: str | None, *, is_model: bool = False) -> Error:
    """Return the error for the client; `is_model`: the requested model is not served."""
    told = "model_not_found" if is_model else _NAMES.get(code, str(code))
    return Error(error=ErrorBody(message, answered(code).type, param, told))
