"""Names and numbers of the gRPC contract that its messages do not hold.

With `antiphon.v1` this is what the two gRPC services and their callers agree on: names of metadata, reasons
of errors, bounds, options of channels. No logic, no imports beyond the standard library. A name that goes
away is dropped in a minor release, with a line in the changelog.
"""

from enum import StrEnum
from typing import Final, TypeAlias

# --------------------------------------------------------------------------------------- call metadata

METADATA_SESSION_ID: Final = "antiphon-session-id"
"""On all three streams: the session's name, chosen by the caller, 1 to 64 visible ASCII characters."""

METADATA_LEASE: Final = "antiphon-lease"
"""On all three streams: the right to a slot, a token of `antiphon_service.leases`."""

METADATA_WORKER_ID: Final = "antiphon-worker-id"
"""In the worker's initial metadata, sent at once: who has the session attached."""

METADATA_TRACEPARENT: Final = "traceparent"
"""W3C trace context of the session; a unit's own travels in `PrefillRequest.traceparent`."""

METADATA_TRACESTATE: Final = "tracestate"
"""What vendors add to it, opaque."""

# ---------------------------------------------------------------------------------------------- errors

ERROR_DOMAIN: Final = "antiphon.v1"
"""`google.rpc.ErrorInfo.domain` of every error that the services raise."""


class Reason(StrEnum):
    """Why a session or a unit failed: `ErrorInfo.reason` of a status, or `ItemError.reason` inside an answer.

    The comment above each group names the gRPC status code that carries it.
    """

    # INVALID_ARGUMENT; BadRequest lists the fields
    CONFIG_INVALID = "CONFIG_INVALID"
    METADATA_INVALID = "METADATA_INVALID"
    PAYLOAD_INVALID = "PAYLOAD_INVALID"
    # NOT_FOUND
    MODEL_NOT_FOUND = "MODEL_NOT_FOUND"
    VOICE_NOT_FOUND = "VOICE_NOT_FOUND"
    # UNIMPLEMENTED
    MODE_UNSUPPORTED = "MODE_UNSUPPORTED"
    # UNAUTHENTICATED
    LEASE_MISSING = "LEASE_MISSING"
    LEASE_INVALID = "LEASE_INVALID"
    # PERMISSION_DENIED
    STALE_LEASE = "STALE_LEASE"
    # ABORTED
    LEASE_REVOKED = "LEASE_REVOKED"
    # ALREADY_EXISTS
    STREAM_EXISTS = "STREAM_EXISTS"
    # FAILED_PRECONDITION
    CONFIG_REQUIRED = "CONFIG_REQUIRED"
    CONFIG_REPEATED = "CONFIG_REPEATED"
    UNIT_OUT_OF_ORDER = "UNIT_OUT_OF_ORDER"
    # RESOURCE_EXHAUSTED, the caller's bug. gRPC itself refuses a message that is too large, so that status
    # carries no ErrorInfo and its reader names the reason.
    UNIT_WINDOW = "UNIT_WINDOW"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    # RESOURCE_EXHAUSTED, worth another try; RetryInfo says when
    NO_FREE_SLOT = "NO_FREE_SLOT"
    QUEUE_FULL = "QUEUE_FULL"
    # RESOURCE_EXHAUSTED; this session cannot continue
    KV_EXHAUSTED = "KV_EXHAUSTED"
    # DEADLINE_EXCEEDED, timers of the worker
    ATTACH_TIMEOUT = "ATTACH_TIMEOUT"
    UNIT_TIMEOUT = "UNIT_TIMEOUT"
    # DEADLINE_EXCEEDED, an expected end
    IDLE_TIMEOUT = "IDLE_TIMEOUT"
    SESSION_LIMIT = "SESSION_LIMIT"
    # UNAVAILABLE; another worker may serve
    LOADING = "LOADING"
    DRAINING = "DRAINING"
    # UNAVAILABLE without ErrorInfo: the transport failed, and the client names it
    WORKER_LOST = "WORKER_LOST"
    # INTERNAL; the device's state is gone and the worker exits
    ENGINE_FATAL = "ENGINE_FATAL"
    # no status: ItemError of one unit, and the session goes on
    AUDIO_INVALID = "AUDIO_INVALID"
    IMAGE_INVALID = "IMAGE_INVALID"
    VIDEO_INVALID = "VIDEO_INVALID"
    PARAMS_INVALID = "PARAMS_INVALID"
    CONTENT_UNSUPPORTED = "CONTENT_UNSUPPORTED"
    INPUT_TOO_LONG = "INPUT_TOO_LONG"
    INFERENCE_FAILED = "INFERENCE_FAILED"


class AcquireReason(StrEnum):
    """Why DispatchService gives no slot: `ErrorInfo.reason` of its statuses. Those that sessions have as well
    mean the same there."""

    KEY_REFUSED = "KEY_REFUSED"
    """The key is missing, not known, withdrawn or expired."""
    NOT_ALLOWED = "NOT_ALLOWED"
    """The key is not for this kind of session or this model."""
    RATE_LIMITED = "RATE_LIMITED"
    """Too many calls, or too many at once; RetryInfo says when."""
    PAYLOAD_INVALID = "PAYLOAD_INVALID"
    QUEUE_FULL = "QUEUE_FULL"
    WAIT_EXPIRED = "WAIT_EXPIRED"
    """The longest wait is over."""
    WAIT_CANCELLED = "WAIT_CANCELLED"
    """Somebody who knows the ticket gave its place up."""
    NO_WORKER = "NO_WORKER"
    """No worker is ready, or the dispatcher cannot be reached."""
    DRAINING = "DRAINING"
    SLOT_LIMIT = "SLOT_LIMIT"
    """The key or address holds or awaits as many slots of the pool as one caller may have."""
    QUOTA_EXCEEDED = "QUOTA_EXCEEDED"
    """The key has used up its quota of the day."""


ITEM_REASONS: Final = frozenset(
    {
        Reason.AUDIO_INVALID,
        Reason.IMAGE_INVALID,
        Reason.VIDEO_INVALID,
        Reason.PARAMS_INVALID,
        Reason.CONTENT_UNSUPPORTED,
        Reason.INPUT_TOO_LONG,
        Reason.INFERENCE_FAILED,
    }
)
"""The reasons of `ItemError`; every other one ends its session."""

CLIENT_SIDE_REASONS: Final = frozenset({Reason.MESSAGE_TOO_LARGE, Reason.WORKER_LOST})
"""The reasons that no ErrorInfo carries: gRPC made the status, and its reader names the reason."""

# ------------------------------------------------------------------------------------- tools of a chat

MAX_TOOLS: Final = 128
"""In a turn, and calls in one message."""

TOOL_NAME: Final = "[a-zA-Z0-9_-]{1,64}"
"""What names of tools match."""

MAX_TOOL_DESCRIPTION: Final = 4096
"""Characters."""

MAX_SCHEMA_BYTES: Final = 16_384
"""Of the arguments of one tool."""

MAX_SCHEMAS_BYTES: Final = 131_072
"""Of those of all tools of a turn."""

MAX_CALL_BYTES: Final = 65_536
"""Of the arguments of a call in the history."""

MAX_SCHEMA_DEPTH: Final = 32
"""Values in one another, of a schema and of arguments."""

# --------------------------------------------------------------------------- gRPC channels

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""Largest message that either side receives; gRPC's own 4 MiB would end the stream."""

ChannelOptions: TypeAlias = tuple[tuple[str, int], ...]
"""gRPC channel arguments; times in milliseconds."""

BOTH_SIDES_OPTIONS: Final[ChannelOptions] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # With the probe on, megabytes run ahead of a reader that has stopped; off, one message does.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Without this one a frozen peer on an idle stream stays unnoticed for most of a minute.
    ("grpc.http2.ping_timeout_ms", 5_000),
)
"""Options of channels and servers that carry sessions: each notices a dead or frozen peer within 15 s."""

CLIENT_OPTIONS: Final[ChannelOptions] = (
    *BOTH_SIDES_OPTIONS,
    # A session's stream is never retried: the state behind it is gone.
    ("grpc.enable_retries", 0),
)
"""Options of a channel that carries sessions."""
