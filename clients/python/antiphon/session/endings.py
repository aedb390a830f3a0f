"""Ends of running conversations, with the same reasons in every kind of session."""

from typing import Final

from antiphon.errors import SessionClosed
from antiphon.protocol.events import ErrorEvent

REGULAR_ENDS: Final = frozenset({"timeout", "context_full"})
"""The reasons of regular ends: the session's time or its context is used up."""

_SERVER_SHUTDOWN_CODE: Final = 1012

_BY_CLOSE: Final = {
    1002: "invalid_frame",
    1007: "invalid_frame",
    1008: "slow_consumer",
    1009: "too_large",
    1011: "backend_error",
    _SERVER_SHUTDOWN_CODE: "server_shutdown",
    1013: "service_unavailable",
    3000: "unauthorized",
    4001: "resumed_elsewhere",
}
"""The reason for each close code of the server, if no event is more precise."""

_SAME: Final = {"inference_error": "backend_error", "invalid_api_key": "unauthorized"}
"""The codes of `error` events and the words that `session.closed` has for the same reasons."""

_NOT_RETRYABLE: Final = frozenset(
    {
        "invalid_frame",
        "invalid_json",
        "resumed_elsewhere",
        "slow_consumer",
        "too_large",
        "unauthorized",
        "user_stop",
    }
)


def closed_here(message: str) -> SessionClosed:
    """Return the exception for a conversation that this side has closed."""
    return SessionClosed("user_stop", message=message, retryable=False)


def ended(
    close_code: int | None,
    trace_id: str | None,
    *,
    closed: str | None = None,
    error: ErrorEvent | None = None,
    message: str | None = None,
) -> SessionClosed:
    """Return the exception for a conversation that this side did not close.

    `closed` is the reason of `session.closed`, `error` the event right before the Close; None without one.
    """
    reason = closed or _reason(close_code, error)
    text = message or (error.message if error else "")
    return SessionClosed(reason, close_code, trace_id, message=text, retryable=reason not in _NOT_RETRYABLE)


def _reason(close_code: int | None, error: ErrorEvent | None) -> str:
    """Return the code of the error, unless the connection was lost or the server went away after it."""
    known = _BY_CLOSE.get(close_code or 0, "connection_lost")
    if error is None or close_code in (None, 1006, _SERVER_SHUTDOWN_CODE):
        return known
    return _SAME.get(error.code, error.code)
