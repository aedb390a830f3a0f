"""Names and numbers of the gRPC contract that its messages do not hold.

Together with `antiphon.v1` it is the contract between the two gRPC services and their callers: names of
metadata, reasons of errors, bounds, options of channels. The module has no logic and imports only the
standard library. A minor release may remove a name; the changelog says so.
"""

from enum import StrEnum
from typing import Final, TypeAlias

# --------------------------------------------------------------------------------------- call metadata

METADATA_SESSION_ID: Final = "antiphon-session-id"
"""The session's name on all three streams, chosen by the caller: 1 to 64 visible ASCII characters."""

METADATA_LEASE: Final = "antiphon-lease"
"""The right to a slot on all three streams: a token of `antiphon_service.leases`."""

METADATA_WORKER_ID: Final = "antiphon-worker-id"
"""The id of the worker that has the session, in the initial metadata that the worker sends at once."""

METADATA_TRACEPARENT: Final = "traceparent"
"""The W3C trace context of the session; a unit's own travels in `PrefillRequest.traceparent`."""

METADATA_TRACESTATE: Final = "tracestate"
"""The vendors' additions to the trace context, opaque."""

# ---------------------------------------------------------------------------------------------- errors

ERROR_DOMAIN: Final = "antiphon.v1"
"""The `google.rpc.ErrorInfo.domain` of every error that the services raise."""


class Reason(StrEnum):
    """The reason that a session or a unit failed: `ErrorInfo.reason` of a status, or `ItemError.reason`.

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
    # RESOURCE_EXHAUSTED, the caller's bug. gRPC itself refuses a message that is too large, so its status
    # carries no ErrorInfo, and the receiver of the status sets the reason MESSAGE_TOO_LARGE.
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
    """The reason that DispatchService grants no slot: `ErrorInfo.reason` of its statuses.

    A value that `Reason` has as well means the same there.
    """

    KEY_REFUSED = "KEY_REFUSED"
    """The key is missing, unknown, withdrawn or expired."""
    NOT_ALLOWED = "NOT_ALLOWED"
    """The key is not for this kind of session or this model."""
    RATE_LIMITED = "RATE_LIMITED"
    """The caller makes too many calls, or too many at once; RetryInfo says when to retry."""
    PAYLOAD_INVALID = "PAYLOAD_INVALID"
    QUEUE_FULL = "QUEUE_FULL"
    WAIT_EXPIRED = "WAIT_EXPIRED"
    """The longest wait in the queue is over."""
    WAIT_CANCELLED = "WAIT_CANCELLED"
    """A holder of the ticket gave up its place in the queue."""
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
"""The reasons of `ItemError`; every other reason ends its session."""

CLIENT_SIDE_REASONS: Final = frozenset({Reason.MESSAGE_TOO_LARGE, Reason.WORKER_LOST})
"""The reasons that no ErrorInfo carries: gRPC makes the status, and the receiver sets the reason."""

# ------------------------------------------------------------------------------------- tools of a chat

MAX_TOOLS: Final = 128
"""The largest number of tools in a turn, and of calls in one message."""

TOOL_NAME: Final = "[a-zA-Z0-9_-]{1,64}"
"""The pattern of names of tools."""

MAX_TOOL_DESCRIPTION: Final = 4096
"""The longest description of a tool, in characters."""

MAX_SCHEMA_BYTES: Final = 16_384
"""The largest schema of one tool's arguments, in bytes."""

MAX_SCHEMAS_BYTES: Final = 131_072
"""The largest total of the schemas of all tools of a turn, in bytes."""

MAX_CALL_BYTES: Final = 65_536
"""The largest arguments of a call in the history, in bytes."""

MAX_SCHEMA_DEPTH: Final = 32
"""The deepest nesting of values in a schema and in arguments."""

# --------------------------------------------------------------------------- gRPC channels

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""The largest message that either side receives, in bytes; gRPC's own limit of 4 MiB would end the stream."""

ChannelOptions: TypeAlias = tuple[tuple[str, int], ...]
"""gRPC channel arguments; times in milliseconds."""

BOTH_SIDES_OPTIONS: Final[ChannelOptions] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # With the probe, gRPC buffers megabytes for a reader that has stopped; without it, one message.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Without this option a frozen peer on an idle stream stays unnoticed for most of a minute.
    ("grpc.http2.ping_timeout_ms", 5_000),
)
"""The options of channels and servers that carry sessions: each detects a dead or frozen peer within 15 s."""

CLIENT_OPTIONS: Final[ChannelOptions] = (
    *BOTH_SIDES_OPTIONS,
    # A session's stream is never retried: the state behind it is gone.
    ("grpc.enable_retries", 0),
)
"""The options of a channel that carries sessions."""
