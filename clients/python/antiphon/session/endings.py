"""How a running conversation ends: the same reasons in every kind of session."""

from typing import Final

from antiphon.errors import SessionClosed
from antiphon.protocol.events import ErrorEvent

QUIET: Final = frozenset({"timeout", "context_full"})
"""Ends that belong to a session's life: its time or its context is used up."""

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
"""Close code of the server -> reason, where no event says more."""

_SAME: Final = {"inference_error": "backend_error", "invalid_api_key": "unauthorized"}
"""Codes of `error` events that mean what `session.closed` has another word for."""

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
    """Return what is raised about a conversation that this side has closed."""
    return SessionClosed("user_stop", message=message, retryable=False)


def ended(
    close_code: int | None,
    trace_id: str | None,
    *,
    closed: str | None = None,
    error: ErrorEvent | None = None,
    message: str | None = None,
) -> SessionClosed:
    """Return what is raised about a conversation that ended by itself.

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
