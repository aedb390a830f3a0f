"""Error codes of the public protocols, with their effect on the connection and their texts."""

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final

from antiphon.contract import Reason


class CloseCode(IntEnum):
    """The reason for which the server closes a WebSocket (RFC 6455 section 7.4; 3000 is from its
    registry)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    UNSUPPORTED_DATA = 1003
    INVALID_UTF8 = 1007
    POLICY_VIOLATION = 1008
    MESSAGE_TOO_BIG = 1009
    INTERNAL_ERROR = 1011
    SERVICE_RESTART = 1012
    TRY_AGAIN_LATER = 1013
    UNAUTHORIZED = 3000
    INVALID_REQUEST = 4000
    RESUMED_ELSEWHERE = 4001


class ErrorCode(StrEnum):
    """Error codes, for programs."""

    # Errors of the client after which the session continues.
    NOT_READY = "not_ready"
    UNKNOWN_EVENT = "unknown_event"
    MISSING_FIELD = "missing_field"
    INVALID_PAYLOAD = "invalid_payload"
    INVALID_EVENT = "invalid_event"
    PAUSED = "paused"
    # Errors of the client after which the connection closes.
    INVALID_JSON = "invalid_json"
    INVALID_FRAME = "invalid_frame"
    INIT_TIMEOUT = "init_timeout"
    SLOW_CONSUMER = "slow_consumer"
    RATE_LIMITED = "rate_limited"
    UNSUPPORTED_MODE = "unsupported_mode"
    UNSUPPORTED_PROTOCOL = "unsupported_protocol"
    UNAUTHORIZED = "unauthorized"
    RESUME_FAILED = "resume_failed"
    QUOTA_EXCEEDED = "quota_exceeded"
    QUEUE_CANCELLED = "queue_cancelled"
    # Errors of the server.
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
    """A refused event of the client: nothing has changed, and the client may send a corrected one.

    `message` names the field, the expected and the actual value. `param` is the path of the field from the
    root of the event. `unknown_event` is the printable name of an event that the dialect does not have.
    """

    def __init__(
        self, code: ErrorCode, message: str, param: str | None = None, unknown_event: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.unknown_event = unknown_event


class UnknownField(Refusal):
    """An unknown field, in dialects that refuse those; `param` is its path."""

    def __init__(self, param: str) -> None:
        super().__init__(ErrorCode.INVALID_PAYLOAD, f"{param}: there is no such field here", param)


class WrongType(Refusal):
    """A value whose JSON type is not that of its field."""


class InvalidUtf8(Exception):
    """A text frame that is not UTF-8. The connection is closed with 1007, without an event."""


def invalid(param: str, what: str) -> Refusal:
    """Return the refusal of a known field with an unusable value; `what` continues the sentence "<param>:
    ..."."""
    return Refusal(ErrorCode.INVALID_PAYLOAD, f"{param}: {what}", param)


def missing(param: str, expected: str) -> Refusal:
    """Return the refusal of a required field that is absent, null or empty."""
    return Refusal(ErrorCode.MISSING_FIELD, f"{param} is missing: {expected} is required", param)


@dataclass(frozen=True)
class Verdict:
    """The form in which the end of a session or a failure is reported to the client.

    `code` and `message` make an `error` event, `closed` is the reason in `session.closed`, `close` the close
    code; each is left out if None. `clock` is the name of an expired timer, with its seconds if it is a timer
    of the adapter; empty without one.
    """

    code: ErrorCode | None
    message: str
    closed: str | None
    close: CloseCode | None
    clock: str = ""

    def refusal(self) -> Refusal:
        """Return the verdict as a refusal, for a session that continues."""
        assert self.code is not None
        return Refusal(self.code, self.message)


def timed_out(clock: str, seconds: float, message: str) -> Verdict:
    """Return the end of a session with an expired timer."""
    return Verdict(None, message, TIMEOUT, CloseCode.NORMAL, f"{clock} ({seconds:.1f}s)")


def no_json(refusal: Refusal) -> Verdict:
    """Return the end of a session whose client sent a frame that is not valid JSON."""
    return Verdict(refusal.code, refusal.message, None, CloseCode.UNSUPPORTED_DATA)


def flood(things: str, count: int, seconds: float) -> Verdict:
    """Return the end of a session whose client sent too many `things`."""
    message = f"too many {things}: at most {count} in {seconds:g} s are allowed; slow down and connect again"
    return Verdict(ErrorCode.RATE_LIMITED, message, None, CloseCode.POLICY_VIOLATION)


ADDRESS_FLOOD: Final = Verdict(
    ErrorCode.RATE_LIMITED,
    "too much comes from your address, over all its connections; slow down and connect again",
    None,
    CloseCode.POLICY_VIOLATION,
)
"""The end of a session whose address exceeds its rate limit."""

USER_STOP: Final = "user_stop"
DONE: Final = "done"
TIMEOUT: Final = "timeout"
CONTEXT_FULL: Final = "context_full"
SHUTDOWN: Final = "server_shutdown"
BACKEND_ERROR: Final = "backend_error"
SLOW_CONSUMER: Final = "slow_consumer"
"""The end reason of a slow consumer, as in the current dialect; the other dialects translate it."""

_INFERENCE_FAILED: Final = "the model could not process this input; the session goes on"
_SESSION_LOST: Final = "the worker of this session failed; open a new session"
_DEFECT: Final = "the session ended because of an internal fault; open a new session"


def _lost(message: str) -> Verdict:
    return Verdict(ErrorCode.INFERENCE_ERROR, message, BACKEND_ERROR, CloseCode.INTERNAL_ERROR)


def _refused(code: ErrorCode, message: str) -> Verdict:
    return Verdict(code, message, None, CloseCode.TRY_AGAIN_LATER)


NO_WORKER: Final = _refused(
    ErrorCode.SERVICE_UNAVAILABLE, "no worker is ready to take a session; try again later"
)
OVERLOADED: Final = _refused(ErrorCode.SERVICE_UNAVAILABLE, "the server is too busy; try again later")
SHUTTING_DOWN: Final = _refused(ErrorCode.SERVICE_UNAVAILABLE, "the server is shutting down; try again later")
QUEUE_TIMEOUT: Final = _refused(
    ErrorCode.QUEUE_TIMEOUT, "no slot became free within the longest wait allowed; try again later"
)
QUEUE_CANCELLED: Final = Verdict(
    ErrorCode.QUEUE_CANCELLED,
    "the place in the queue was given up; connect again for another",
    None,
    CloseCode.NORMAL,
)
KEY_WITHDRAWN: Final = Verdict(
    ErrorCode.UNAUTHORIZED,
    "the key of this session was withdrawn; connect again with another",
    None,
    CloseCode.UNAUTHORIZED,
)
KEY_EXPIRED: Final = Verdict(
    ErrorCode.UNAUTHORIZED,
    "the key of this session has expired; connect again with another",
    None,
    CloseCode.UNAUTHORIZED,
)
NOT_ALLOWED: Final = Verdict(
    ErrorCode.UNAUTHORIZED,
    "the key of this session does not allow this model or mode; connect again with another",
    None,
    CloseCode.UNAUTHORIZED,
)
QUOTA_SPENT: Final = Verdict(
    ErrorCode.QUOTA_EXCEEDED,
    "the key has used up its quota of today; connect again after midnight UTC, or with another key",
    None,
    CloseCode.POLICY_VIOLATION,
)
KEY_UNKNOWN: Final = Verdict(
    ErrorCode.UNAUTHORIZED,
    "the key is missing, unknown here or expired; send another as Authorization: Bearer KEY",
    None,
    CloseCode.UNAUTHORIZED,
)
RESUME_FAILED: Final = Verdict(
    ErrorCode.RESUME_FAILED,
    "the session cannot be resumed: the token is unknown here, used or expired; open a new session",
    None,
    CloseCode.POLICY_VIOLATION,
)
RESUMES_FLOOD: Final = Verdict(
    ErrorCode.RATE_LIMITED,
    "the session was resumed too often; wait some seconds and try again with the same token",
    None,
    CloseCode.TRY_AGAIN_LATER,
)
OWNER_UNREACHABLE: Final = _refused(
    ErrorCode.SERVICE_UNAVAILABLE,
    "the adapter of this session cannot be reached; try again with the same token",
)
BETA: Final = Verdict(
    ErrorCode.UNSUPPORTED_PROTOCOL,
    "the beta of this protocol is not served; leave the header OpenAI-Beta out",
    None,
    CloseCode.INVALID_REQUEST,
)
CONNECT_FAILED: Final = _refused(
    ErrorCode.WORKER_CONNECT_FAILED, "no worker could be reached for this session; try again later"
)
SERVER_SHUTDOWN: Final = Verdict(
    None, "the server is shutting down; connect again", SHUTDOWN, CloseCode.SERVICE_RESTART
)

NOT_UTF8: Final = Verdict(None, "invalid UTF-8", None, CloseCode.INVALID_UTF8)
NOT_STARTED: Final = Verdict(
    None,
    "no session.start came while many others connected; connect again and send it at once",
    TIMEOUT,
    CloseCode.NORMAL,
)
CONTEXT_IS_FULL: Final = Verdict(
    None, "the context of the model is full; open a new session", CONTEXT_FULL, CloseCode.NORMAL
)
FAILURES_IN_A_ROW: Final = 3
"""The number of consecutive failed inferences that ends the session."""

GAVE_UP: Final = Verdict(
    None,
    "the model failed several times in a row; open a new session",
    BACKEND_ERROR,
    CloseCode.INTERNAL_ERROR,
)
BINARY_FRAME: Final = Verdict(
    ErrorCode.INVALID_FRAME,
    "expected a text frame holding JSON, got a binary frame",
    None,
    CloseCode.UNSUPPORTED_DATA,
)
SLOW: Final = Verdict(
    None,
    "the client does not read its events; read while you send, and open a new session",
    SLOW_CONSUMER,
    CloseCode.POLICY_VIOLATION,
)

# One row for each reason of the gRPC contract. Reasons of single units (ItemError) come first.
VERDICTS: Final[dict[Reason, Verdict]] = {
    Reason.AUDIO_INVALID: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the model refused the audio of this input", None, None
    ),
    Reason.IMAGE_INVALID: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the model refused a picture of this input", None, None
    ),
    Reason.VIDEO_INVALID: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the model refused a video of this input", None, None
    ),
    Reason.PARAMS_INVALID: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the model refused a setting of this input", None, None
    ),
    Reason.CONTENT_UNSUPPORTED: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the model cannot take this kind of input", None, None
    ),
    Reason.INPUT_TOO_LONG: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the input is too long for the model; send less at once", None, None
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
        "the model served here cannot run this mode; choose another by the URL",
        None,
        CloseCode.POLICY_VIOLATION,
    ),
    Reason.MODEL_NOT_FOUND: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the model asked for is not served here; /v1/models lists them", None, None
    ),
    Reason.VOICE_NOT_FOUND: Verdict(
        ErrorCode.INVALID_PAYLOAD, "the voice asked for is not registered here; leave it out", None, None
    ),
    Reason.CONFIG_INVALID: Verdict(
        ErrorCode.INVALID_PAYLOAD,
        "the model refused the settings of the session; open a new one with others",
        BACKEND_ERROR,
        CloseCode.POLICY_VIOLATION,
    ),
    Reason.KV_EXHAUSTED: Verdict(
        ErrorCode.INFERENCE_ERROR,
        "the worker ran out of memory for this session; open a new one later",
        BACKEND_ERROR,
        CloseCode.TRY_AGAIN_LATER,
    ),
    Reason.SESSION_LIMIT: Verdict(
        None, "the session reached its time limit; open a new one", TIMEOUT, CloseCode.NORMAL, "Session limit"
    ),
    Reason.IDLE_TIMEOUT: Verdict(
        None, "the session was idle for too long; open a new one", TIMEOUT, CloseCode.NORMAL, "Idle timeout"
    ),
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

CORRECTABLE: Final = frozenset({Reason.MODEL_NOT_FOUND, Reason.VOICE_NOT_FOUND})
"""Reasons for which a worker refuses settings that the client may correct."""

DEFECTS: Final = frozenset(reason for reason, verdict in VERDICTS.items() if verdict.message == _DEFECT)
"""Reasons that only a defect of the adapter can cause; they are logged as errors."""


def lost(reason: Reason, *, is_going_away: bool) -> Verdict:
    """Return the end of a session that failed at its worker; `is_going_away`: the worker had announced its
    drain."""
    if is_going_away:
        return SERVER_SHUTDOWN
    verdict = VERDICTS[reason]
    return verdict if verdict.close is not None else VERDICTS[Reason.WORKER_LOST]
