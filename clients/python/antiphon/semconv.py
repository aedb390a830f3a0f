"""Names and numbers that adapter, worker and clients must agree on.

With the messages of `antiphon.v1` this is the only module that both services import. Its policy:

- constants, and the two things that both sides must build alike, the server's options and a lease's MAC; no
  other logic, no imports beyond the standard library;
- one line of meaning for each;
- a name that goes away is dropped in a minor release, with a line in the changelog.
"""

import hashlib
import hmac
from enum import StrEnum
from typing import Final, TypeAlias

# --------------------------------------------------------------------------------------- call metadata

METADATA_SESSION_ID: Final = "antiphon-session-id"
"""On all three streams: the session's name, chosen by the caller, 1 to 64 visible ASCII characters."""

METADATA_LEASE: Final = "antiphon-lease"
"""On all three streams: the right to a slot, `<slot>:<epoch>:<mac>`."""

METADATA_WORKER_ID: Final = "antiphon-worker-id"
"""In the worker's initial metadata, sent at once: who has the session attached."""

METADATA_TRACEPARENT: Final = "traceparent"
"""W3C trace context of the session; a unit's own travels in `PrefillRequest.traceparent`."""

# ---------------------------------------------------------------------------------------------- leases

DEFAULT_POOL: Final = "default"
"""The one pool: all workers are interchangeable."""

MIN_WORKER_KEY_BYTES: Final = 16
"""Shortest key that dispatchers sign leases with and workers check them by."""

_LEASE_MAC_BYTES: Final = 16


def lease_mac(key: bytes, pool: str, worker_id: str, slot: int, epoch: int) -> str:
    """The MAC of a lease: the first 16 bytes of HMAC-SHA256, as 32 hexadecimal digits."""
    text = f"{pool}\n{worker_id}\n{slot}\n{epoch}"
    return hmac.digest(key, text.encode(), hashlib.sha256)[:_LEASE_MAC_BYTES].hex()


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
    PARAMS_INVALID = "PARAMS_INVALID"
    CONTENT_UNSUPPORTED = "CONTENT_UNSUPPORTED"
    INPUT_TOO_LONG = "INPUT_TOO_LONG"
    INFERENCE_FAILED = "INFERENCE_FAILED"


ITEM_REASONS: Final = frozenset(
    {
        Reason.AUDIO_INVALID,
        Reason.IMAGE_INVALID,
        Reason.PARAMS_INVALID,
        Reason.CONTENT_UNSUPPORTED,
        Reason.INPUT_TOO_LONG,
        Reason.INFERENCE_FAILED,
    }
)
"""The reasons of `ItemError`; every other one ends its session."""

CLIENT_SIDE_REASONS: Final = frozenset({Reason.MESSAGE_TOO_LARGE, Reason.WORKER_LOST})
"""The reasons that no ErrorInfo carries: gRPC made the status, and its reader names the reason."""

# --------------------------------------------------------------------------- gRPC channels and servers

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""Largest message that either side receives; gRPC's own 4 MiB would end the stream."""

ChannelOptions: TypeAlias = tuple[tuple[str, int], ...]
"""gRPC channel arguments; times in milliseconds."""

_BOTH_SIDES: Final[ChannelOptions] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # With the probe on, megabytes run ahead of a reader that has stopped; off, one message does.
    ("grpc.http2.bdp_probe", 0),
)

CLIENT_OPTIONS: Final[ChannelOptions] = (
    *_BOTH_SIDES,
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Without this one a frozen worker on an idle stream stays unnoticed for most of a minute.
    ("grpc.http2.ping_timeout_ms", 5_000),
    # A session's stream is never retried: the state behind it is gone.
    ("grpc.enable_retries", 0),
)
"""Options of a channel that carries sessions: notices a dead or frozen worker within 15 s."""


def server_options(slots: int) -> ChannelOptions:
    """Options of a worker's server that has room for `slots` sessions.

    A connection's age stays unlimited: an age limit would kill live streams.
    """
    return (
        *_BOTH_SIDES,
        # Both let clients ping as CLIENT_OPTIONS does; by default the server cuts them off. Half their
        # interval, since a ping may arrive early.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Three streams per session, and health checks.
        ("grpc.max_concurrent_streams", 4 * slots + 16),
        # Two processes on one port would split the streams of a session between them.
        ("grpc.so_reuseport", 0),
    )
