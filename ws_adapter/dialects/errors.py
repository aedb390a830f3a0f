"""Error codes of the public protocols, what each means for the connection, and the text that goes with it."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from antiphon.semconv import Reason


class CloseCode(IntEnum):
    """Why the server closes a WebSocket (RFC 6455 section 7.4)."""

    NORMAL = 1000
    UNSUPPORTED_DATA = 1003
    INVALID_UTF8 = 1007
    POLICY_VIOLATION = 1008
    INTERNAL_ERROR = 1011
    SERVICE_RESTART = 1012
    TRY_AGAIN_LATER = 1013


class ErrorCode(StrEnum):
    """`error.code`."""

    # The client's; the session goes on.
    NOT_READY = "not_ready"
    UNKNOWN_EVENT = "unknown_event"
    MISSING_FIELD = "missing_field"
    INVALID_PAYLOAD = "invalid_payload"
    INVALID_EVENT = "invalid_event"
    # The client's; the connection closes.
    INVALID_JSON = "invalid_json"
    INVALID_FRAME = "invalid_frame"
    RATE_LIMITED = "rate_limited"
    UNSUPPORTED_MODE = "unsupported_mode"
    UNSUPPORTED_PROTOCOL = "unsupported_protocol"
    # The server's.
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    SERVICE_UNAVAILABLE = "service_unavailable"
    WORKER_BUSY = "worker_busy"
    WORKER_CONNECT_FAILED = "worker_connect_failed"
    INFERENCE_ERROR = "inference_error"

    @property
    def is_servers(self) -> bool:
        """Whether the fault is the server's."""
        return self in _SERVERS


_SERVERS: Final = frozenset(
    {
        ErrorCode.QUEUE_FULL,
        ErrorCode.QUEUE_TIMEOUT,
        ErrorCode.SERVICE_UNAVAILABLE,
        ErrorCode.WORKER_BUSY,
        ErrorCode.WORKER_CONNECT_FAILED,
        ErrorCode.INFERENCE_ERROR,
    }
)


class Refusal(Exception):
    """An event of the client that is not applied: nothing has changed, and the client may send it corrected.

    `message` names the field, what was expected and what came; `param` is the field's path from the root of
    the event.
    """

    def __init__(self, code: ErrorCode, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


class InvalidUtf8(Exception):
    """A text frame that is not UTF-8. The connection is closed with 1007, without an event."""


def invalid(param: str, what: str) -> Refusal:
    """A known field whose value cannot be used; `what` continues the sentence "<param>: ..."."""
    return Refusal(ErrorCode.INVALID_PAYLOAD, f"{param}: {what}", param)


def missing(param: str, expected: str) -> Refusal:
    """A required field that is absent, null or empty."""
    return Refusal(ErrorCode.MISSING_FIELD, f"{param} is missing: {expected} is required", param)


@dataclass(frozen=True)
class Verdict:
    """What the end or failure of something behind the adapter means in public.

    `code` and `message` make an `error` event, `closed` the reason of `session.closed`, `close` the close
    code; what is None does not happen.
    """

    code: ErrorCode | None
    message: str
    closed: str | None
    close: CloseCode | None


_INFERENCE_FAILED: Final = "the model could not process this input"
_SESSION_LOST: Final = "the worker of this session failed; open a new session"
_DEFECT: Final = "the session ended because of an internal fault; open a new session"


def _lost(message: str) -> Verdict:
    return Verdict(ErrorCode.INFERENCE_ERROR, message, "backend_error", CloseCode.INTERNAL_ERROR)


def _refused(code: ErrorCode, message: str) -> Verdict:
    return Verdict(code, message, None, CloseCode.TRY_AGAIN_LATER)


NO_WORKER: Final = _refused(
    ErrorCode.SERVICE_UNAVAILABLE, "no worker is ready to take a session; try again later"
)
SHUTTING_DOWN: Final = _refused(ErrorCode.SERVICE_UNAVAILABLE, "the server is shutting down; try again later")
QUEUE_TIMEOUT: Final = _refused(
    ErrorCode.QUEUE_TIMEOUT, "no slot became free within the longest wait allowed; try again later"
)
CONNECT_FAILED: Final = _refused(
    ErrorCode.WORKER_CONNECT_FAILED, "no worker could be reached for this session; try again later"
)
SERVER_SHUTDOWN: Final = Verdict(
    None, "the server is shutting down", "server_shutdown", CloseCode.SERVICE_RESTART
)

# One row per reason: section 7.1 of the protocol. Reasons of single units (ItemError) come first.
VERDICTS: Final[dict[Reason, Verdict]] = {
    Reason.AUDIO_INVALID: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the model refused the audio of this input", None, None
    ),
    Reason.IMAGE_INVALID: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the model refused a picture of this input", None, None
    ),
    Reason.PARAMS_INVALID: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the model refused a setting of this input", None, None
    ),
    Reason.CONTENT_UNSUPPORTED: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the model cannot take this kind of input", None, None
    ),
    Reason.INPUT_TOO_LONG: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the input is too long for the model", None, None
    ),
    Reason.INFERENCE_FAILED: Verdict(ErrorCode.INFERENCE_ERROR, _INFERENCE_FAILED, None, None),
    Reason.QUEUE_FULL: _refused(ErrorCode.QUEUE_FULL, "the queue is full; try again later"),
    Reason.NO_FREE_SLOT: _refused(
        ErrorCode.WORKER_BUSY, "the worker has no free slot at the moment; try again later"
    ),
    Reason.LOADING: NO_WORKER,
    Reason.DRAINING: NO_WORKER,
    Reason.ATTACH_TIMEOUT: CONNECT_FAILED,
    Reason.LEASE_MISSING: CONNECT_FAILED,
    Reason.LEASE_INVALID: CONNECT_FAILED,
    Reason.STALE_LEASE: CONNECT_FAILED,
    Reason.MODE_UNSUPPORTED: Verdict(
        ErrorCode.UNSUPPORTED_MODE,
        "the model served here cannot run this mode",
        None,
        CloseCode.POLICY_VIOLATION,
    ),
    Reason.MODEL_NOT_FOUND: Verdict(
        ErrorCode.INVALID_PAYLOAD, "payload.model: the model is not served here", None, None
    ),
    Reason.VOICE_NOT_FOUND: Verdict(
        ErrorCode.INVALID_PAYLOAD, "payload.voice: the voice is not registered here", None, None
    ),
    Reason.CONFIG_INVALID: Verdict(
        ErrorCode.INVALID_PAYLOAD,
        "payload: the model refused the settings of the session",
        "backend_error",
        CloseCode.POLICY_VIOLATION,
    ),
    Reason.KV_EXHAUSTED: Verdict(
        ErrorCode.INFERENCE_ERROR,
        "the worker ran out of memory for this session; open a new one later",
        "backend_error",
        CloseCode.TRY_AGAIN_LATER,
    ),
    Reason.SESSION_LIMIT: Verdict(None, "the session reached its time limit", "timeout", CloseCode.NORMAL),
    Reason.IDLE_TIMEOUT: Verdict(None, "the session was idle for too long", "timeout", CloseCode.NORMAL),
    Reason.UNIT_TIMEOUT: _lost("the worker did not finish in time; open a new session"),
    Reason.ENGINE_FATAL: _lost(_SESSION_LOST),
    Reason.WORKER_LOST: _lost(_SESSION_LOST),
    Reason.LEASE_REVOKED: _lost("the worker took the slot of this session back; open a new session"),
    Reason.METADATA_INVALID: _lost(_DEFECT),
    Reason.PAYLOAD_INVALID: _lost(_DEFECT),
    Reason.STREAM_EXISTS: _lost(_DEFECT),
    Reason.CONFIG_REQUIRED: _lost(_DEFECT),
    Reason.CONFIG_REPEATED: _lost(_DEFECT),
    Reason.UNIT_OUT_OF_ORDER: _lost(_DEFECT),
    Reason.UNIT_WINDOW: _lost(_DEFECT),
    Reason.MESSAGE_TOO_LARGE: _lost(_DEFECT),
}

DEFECTS: Final = frozenset(reason for reason, verdict in VERDICTS.items() if verdict.message == _DEFECT)
"""Reasons that only a defect of the adapter can cause; they are logged as errors."""
