"""What error codes and close codes mean, for people."""

from collections.abc import Mapping
from typing import Final

from ws_adapter.dialects.errors import CloseCode, ErrorCode

ERRORS: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.NOT_READY: "the event needs a session that is configured; send the opening event first",
    ErrorCode.UNKNOWN_EVENT: "`type` names no event of this dialect",
    ErrorCode.MISSING_FIELD: "a required field is absent, null or empty; `param` names it",
    ErrorCode.INVALID_PAYLOAD: "a field cannot be used; `param` names it, the message says what was expected",
    ErrorCode.INVALID_EVENT: "a known event at a time when it may not come",
    ErrorCode.PAUSED: "input during a pause; send `resume` first (only on `/ws/duplex`)",
    ErrorCode.INVALID_JSON: "the frame is not JSON; close 1003",
    ErrorCode.INVALID_FRAME: "a binary frame; close 1003",
    ErrorCode.RATE_LIMITED: "more than 1000 events in 5 s, or 20 errors in 1 s; close 1008",
    ErrorCode.UNSUPPORTED_MODE: "the mode asked for is not served here; close 1008",
    ErrorCode.UNSUPPORTED_PROTOCOL: "the protocol asked for is not served here; close 1008",
    ErrorCode.UNAUTHORIZED: "the key was withdrawn during the session; close 3000",
    ErrorCode.QUEUE_CANCELLED: "the ticket was given back; close 1000",
    ErrorCode.QUEUE_FULL: "too many are waiting; close 1013",
    ErrorCode.QUEUE_TIMEOUT: "no slot became free within the longest wait allowed; close 1013",
    ErrorCode.SERVICE_UNAVAILABLE: "no worker is ready, or the server is too busy or shutting down; "
    "close 1013",
    ErrorCode.WORKER_BUSY: "the worker has no free slot after all; close 1013",
    ErrorCode.WORKER_CONNECT_FAILED: "no worker could be reached; close 1013",
    ErrorCode.INFERENCE_ERROR: "a unit failed and the session goes on; as its end, close 1011, or 1013 when "
    "memory ran out",
}
"""Each `error.code`. Without a close code the session goes on and the event has changed nothing."""

CLOSES: Final[Mapping[int, str]] = {
    CloseCode.NORMAL: "the session is over: by the client, a clock or a full context",
    1002: "broken WebSocket framing (without an event before it)",
    CloseCode.UNSUPPORTED_DATA: "not JSON, or a binary frame",
    CloseCode.INVALID_UTF8: "a text frame that is not UTF-8 (without an event before it)",
    CloseCode.POLICY_VIOLATION: "refused: mode, protocol, settings, flood, or a client that does not read",
    1009: "a frame of more than 16 MiB (without an event before it)",
    CloseCode.INTERNAL_ERROR: "the worker of the session failed; open a new session",
    CloseCode.SERVICE_RESTART: "the server is shutting down; connect again",
    CloseCode.TRY_AGAIN_LATER: "no slot or no worker; try again later",
    CloseCode.UNAUTHORIZED: "the key was withdrawn",
}
"""Each close code that a client may see."""


def error_table() -> str:
    """The error codes as a table in Markdown."""
    rows = [
        f"| `{code}` | {'server' if code.is_servers else 'client'} | {said} |"
        for code, said in ERRORS.items()
    ]
    return "\n".join(["| code | fault of | meaning |", "|---|---|---|", *rows])


def close_table() -> str:
    """The close codes as a table in Markdown."""
    rows = [f"| {int(code)} | {said} |" for code, said in CLOSES.items()]
    return "\n".join(["| close code | meaning |", "|---|---|", *rows])
