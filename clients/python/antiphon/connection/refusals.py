"""Exceptions of refusals: error events before a session exists, HTTP answers, failures to connect."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ssl import SSLCertVerificationError, SSLError
from typing import Final

from websockets.exceptions import InvalidHandshake, InvalidStatus

from antiphon.errors import AntiphonError, AuthError, ConnectError, ProtocolError, QueueFull
from antiphon.protocol.events import ErrorEvent

_NO_ROOM: Final = frozenset({"queue_full", "queue_timeout", "worker_busy"})
_NOT_NOW: Final = frozenset(
    {"service_unavailable", "server_overloaded", "worker_connect_failed", "rate_limited", "inference_error"}
)
_TRY_AGAIN_CODES: Final = frozenset({1001, 1006, 1011, 1012, 1013})
_MESSAGE_TOO_BIG: Final = 1009
_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_WITH_TLS: Final = ("wss://", "https://")

PASS_KEY: Final = " Pass api_key."
"""The remedy for a missing key in an error message; a caller with another remedy replaces it."""


def from_error_event(event: ErrorEvent) -> AntiphonError:
    """Return the exception for an `error` event that came instead of a session."""
    why = (event.message or event.code).rstrip(".")
    text = f"The server refused the conversation: {why}."
    if event.code in _NO_ROOM:
        return QueueFull(text, reason=event.code)
    if event.code in _NOT_NOW:
        return ConnectError(text, reason=event.code, retryable=True)
    if event.code in ("queue_cancelled", "quota_exceeded", "insufficient_quota"):
        return ConnectError(text, reason=event.code)
    if event.code in ("unauthorized", "invalid_api_key"):
        return AuthError(text, reason=event.code)
    return ProtocolError(text, reason=event.code, param=event.param)


def from_close(code: int | None) -> AntiphonError:
    """Return the exception for a socket that closed, or a connection that broke, before the session began."""
    if code == _MESSAGE_TOO_BIG:
        text = "The server closed the connection: the message was too large for it (code 1009)."
        return ProtocolError(f"{text} Send less at once.", reason="too_large")
    text = f"The server closed the connection before the conversation began (code {code})."
    return ConnectError(text, reason="closed", retryable=code in _TRY_AGAIN_CODES)


def from_handshake(url: str, error: InvalidHandshake) -> AntiphonError:
    """Return the exception for a server that answered with HTTP but opened no WebSocket."""
    if not isinstance(error, InvalidStatus):
        return no_server(url, "a WebSocket server")
    return from_http_status(url, error.response.status_code, error.response.headers.get("Retry-After"))


def from_http_status(url: str, status: int, retry_after: str | None = None) -> AntiphonError:
    """Return the exception for an HTTP status other than success; `retry_after` is the header's value."""
    if status == 401:
        return AuthError(f"{url} requires a key, or another key (HTTP 401).{PASS_KEY}", reason="unauthorized")
    if status == 403:
        return AuthError(f"{url} does not serve this origin (HTTP 403).", reason="forbidden")
    if status == 404:
        return ConnectError(
            f"{url} does not exist (HTTP 404). Is this an Antiphon server, and can its model do this?",
            reason="not_found",
        )
    refusal = ConnectError(
        f"{url} answered HTTP {status}.",
        reason=f"http_{status}",
        retryable=status == 429 or status >= 500,
    )
    refusal.retry_after_s = retry_after_s(retry_after) if retry_after else None
    return refusal


def retry_after_s(header: str) -> float | None:
    """Return the seconds of a `Retry-After` header, a number or a date; None if it is neither."""
    if _SECONDS.fullmatch(header):
        return float(header)
    try:
        when = parsedate_to_datetime(header)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - datetime.now(UTC)).total_seconds())


def no_server(url: str, kind: str) -> ConnectError:
    """Return the exception for a listener that is no server of this kind."""
    remedy = "" if url.startswith(_WITH_TLS) else " If its port speaks TLS, write wss:// instead of ws://."
    return ConnectError(f"{url} does not answer as {kind} does.{remedy}", reason="no_server")


def from_os_error(url: str, error: OSError) -> ConnectError:
    """Return the exception for a server that could not be reached."""
    if isinstance(error, TimeoutError):
        return ConnectError(f"{url} did not answer in time.", reason="timeout", retryable=True)
    if isinstance(error, ConnectionRefusedError):
        return ConnectError(f"Nothing listens at {url} (refused).", reason="refused", retryable=True)
    if isinstance(error, SSLCertVerificationError):
        why = f"{url} has a certificate that is not trusted here ({error.verify_message})."
        remedy = "If it is your own, name its file in the variable SSL_CERT_FILE."
        return ConnectError(f"{why} {remedy}", reason="untrusted")
    if url.startswith(_WITH_TLS) and isinstance(error, SSLError | ConnectionResetError):
        text = f"{url} ended the TLS handshake. If its port is a plain one, write ws:// instead of wss://."
        return ConnectError(text, reason="no_tls", retryable=isinstance(error, ConnectionResetError))
    why = (error.strerror or str(error)).rstrip(".").lower()
    return ConnectError(f"Cannot reach {url} ({why}).", reason="unreachable", retryable=True)
