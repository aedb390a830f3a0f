"""Errors in the form of OpenAI's HTTP API, for requests that start no session."""

from http import HTTPStatus
from typing import Any, Final

import msgspec
from websockets.http11 import Response

from ws_adapter.pages import responses
from ws_adapter.protocol.completions.refusals import RETRY_S
from ws_adapter.protocol.wire.errors import Verdict

_CODES: Final = {
    "unauthorized": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
    "quota_exceeded": "insufficient_quota",
}
_TYPES: Final = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.INTERNAL_SERVER_ERROR: "server_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "server_error",
}


def error(status: HTTPStatus, code: str, message: str, param: str | None = None, **headers: str) -> Response:
    """Return an error with the body that OpenAI's clients read."""
    kind = _TYPES.get(status, "invalid_request_error")
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return responses.answer(status, body, **headers)


def in_openai_form(response: Response) -> Response:
    """Convert an error of another route to OpenAI's form, and keep its headers."""
    fields: Any = msgspec.json.decode(response.body)["error"]
    code = _CODES.get(fields["code"], fields["code"])
    given = error(HTTPStatus(response.status_code), code, fields["message"])
    for name, value in response.headers.raw_items():
        if name not in given.headers:
            given.headers[name] = value
    return given


def unavailable(verdict: Verdict) -> Response:
    """Return the error of a server that admits no new session."""
    return error(HTTPStatus.SERVICE_UNAVAILABLE, str(verdict.code), verdict.message, Retry_After=str(RETRY_S))


def too_large(most: int) -> Response:
    """Return the error for a body of more than `most` bytes."""
    message = f"the body is longer than {most} bytes: send less at once"
    return error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "body_too_large", message)


NO_LENGTH: Final = "send the body with one Content-Length, not in chunks"
NO_SPEECH: Final = (
    "model: no model served here speaks a given text; POST /v1/chat/completions with "
    'modalities ["text", "audio"] for an answer that is spoken'
)


def no_speech() -> Response:
    """Return the error for a request for speech, which no model serves."""
    return error(HTTPStatus.BAD_REQUEST, "unsupported_model", NO_SPEECH, "model")
