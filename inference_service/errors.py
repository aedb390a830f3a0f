"""The errors of the worker.

    WorkerError
    ├── ConfigurationError        the worker cannot start with its settings (exit code 2)
    │   └── FootprintUnknown      the memory of a model is unknown until it is loaded
    ├── UnitRefused               one unit's input; the session goes on (`ItemError`)
    └── SessionError              ends the three streams of a session, or refuses one
        ├── InvalidArgument       ConfigInvalid, MetadataInvalid, PayloadInvalid
        ├── NotFound              ModelNotFound, VoiceNotFound
        ├── Unauthenticated       LeaseMissing, LeaseInvalid
        ├── ModeUnsupported, StaleLease, LeaseRevoked, StreamExists
        ├── FailedPrecondition    ConfigRequired, ConfigRepeated, UnitOutOfOrder
        ├── ResourceExhausted     UnitWindow, NoFreeSlot, KvExhausted
        ├── DeadlineExceeded      AttachTimeout, UnitTimeout (UnitStalled), IdleTimeout, SessionLimit
        ├── Unavailable           Loading, Draining
        ├── Internal              EngineFatal, SessionFault
        └── Cancelled             the caller cancelled a stream or vanished

A `SessionError` is one object from which code, message, `google.rpc.ErrorInfo`, `BadRequest` and
`RetryInfo` are all built, so that they cannot disagree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import grpc
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from antiphon.contract import ERROR_DOMAIN, ITEM_REASONS, Reason
from antiphon_service.semconv import Side
from inference_service.interface.engine import Failure

RETRY_AFTER_S = 0.5
"""The delay in seconds in RetryInfo, for errors after which a retry may succeed soon."""


@dataclass(frozen=True)
class BadField:
    """A refused field: its path in the request, and the problem."""

    path: str
    problem: str


class WorkerError(Exception):
    """The root of the worker's errors."""


class ConfigurationError(WorkerError):
    """Raised when the worker cannot start with these settings; the message says what to change."""


class FootprintUnknown(ConfigurationError):
    """Raised when the memory that a model takes is unknown until it is loaded."""


class UnitRefused(WorkerError):
    """Raised when a unit's input or parameters cannot be used; `failure` is sent to the caller."""

    def __init__(self, reason: Reason, message: str, field: str) -> None:
        super().__init__(message)
        self.failure = Failure(reason=reason, message=message, field=field)


class SessionError(WorkerError):
    """The error that ends a session, or refuses a stream, with a gRPC status.

    Keyword arguments become the metadata of ErrorInfo; `fields` become BadRequest.
    """

    code: ClassVar[grpc.StatusCode]
    reason: ClassVar[Reason | None] = None
    retry_after_s: ClassVar[float | None] = None
    side: ClassVar[Side | None] = Side.CLIENT
    """The side that caused the error; None for an end without a fault."""

    def __init__(self, message: str, *, fields: Sequence[BadField] = (), **metadata: object) -> None:
        super().__init__(message)
        self.message = message
        self.fields = tuple(fields)
        self.metadata = {name: str(value) for name, value in metadata.items()}

    def status(self) -> status_pb2.Status:
        """Return the status with its details."""
        status = status_pb2.Status(code=self.code.value[0], message=self.message)
        for detail in self._details():
            status.details.add().Pack(detail)
        return status

    def _details(self) -> list[error_details_pb2.ErrorInfo]:
        details = []
        if self.reason is not None:
            details.append(
                error_details_pb2.ErrorInfo(
                    reason=self.reason.value, domain=ERROR_DOMAIN, metadata=self.metadata
                )
            )
        if self.fields:
            violations = [
                error_details_pb2.BadRequest.FieldViolation(field=bad.path, description=bad.problem)
                for bad in self.fields
            ]
            details.append(error_details_pb2.BadRequest(field_violations=violations))
        if self.retry_after_s is not None:
            delay = Duration()
            delay.FromNanoseconds(int(self.retry_after_s * 1e9))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        return details


class InvalidArgument(SessionError):
    """The request can never be served as it is."""

    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, *fields: BadField, **metadata: object) -> None:
        message = "; ".join(f"{bad.path}: {bad.problem}" for bad in fields)
        super().__init__(message, fields=fields, **metadata)


class ConfigInvalid(InvalidArgument):
    """Fields of the session's config have values that are not allowed; all of them are listed."""

    reason = Reason.CONFIG_INVALID


class MetadataInvalid(InvalidArgument):
    """The call's metadata does not name a session properly."""

    reason = Reason.METADATA_INVALID


class PayloadInvalid(InvalidArgument):
    """A message is empty, is for another mode, or cannot be decoded."""

    reason = Reason.PAYLOAD_INVALID


class NotFound(SessionError):
    """The config names a model or voice that this worker does not have."""

    code = grpc.StatusCode.NOT_FOUND


class ModelNotFound(NotFound):
    """The config names another model than the served one."""

    reason = Reason.MODEL_NOT_FOUND


class VoiceNotFound(NotFound):
    """No voice of this id is registered."""

    reason = Reason.VOICE_NOT_FOUND


class ModeUnsupported(SessionError):
    """The model does not support this session mode."""

    code = grpc.StatusCode.UNIMPLEMENTED
    reason = Reason.MODE_UNSUPPORTED


class Unauthenticated(SessionError):
    """The call has no valid lease."""

    code = grpc.StatusCode.UNAUTHENTICATED


class LeaseMissing(Unauthenticated):
    """The worker requires leases, and the call has none."""

    reason = Reason.LEASE_MISSING


class LeaseInvalid(Unauthenticated):
    """The lease is invalid, was made for another worker, or is not the session's."""

    reason = Reason.LEASE_INVALID


class StaleLease(SessionError):
    """The slot has already had this lease, or one with a higher epoch."""

    code = grpc.StatusCode.PERMISSION_DENIED
    reason = Reason.STALE_LEASE


class LeaseRevoked(SessionError):
    """The dispatcher took the slot back."""

    code = grpc.StatusCode.ABORTED
    reason = Reason.LEASE_REVOKED
    side = None


class StreamExists(SessionError):
    """The session already has this stream; the existing one continues."""

    code = grpc.StatusCode.ALREADY_EXISTS
    reason = Reason.STREAM_EXISTS


class FailedPrecondition(SessionError):
    """The caller sent messages out of order, which is a bug of the caller."""

    code = grpc.StatusCode.FAILED_PRECONDITION


class ConfigRequired(FailedPrecondition):
    """The first message of Prefill is not the config."""

    reason = Reason.CONFIG_REQUIRED


class ConfigRepeated(FailedPrecondition):
    """The caller sent a second config."""

    reason = Reason.CONFIG_REPEATED


class UnitOutOfOrder(FailedPrecondition):
    """The number of a unit leaves a gap or repeats, or the unit can never be completed."""

    reason = Reason.UNIT_OUT_OF_ORDER


class ResourceExhausted(SessionError):
    """A limit was reached."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class UnitWindow(ResourceExhausted):
    """More units are in flight than SessionReady allows, which is a bug of the caller."""

    reason = Reason.UNIT_WINDOW


class NoFreeSlot(ResourceExhausted):
    """Every slot has a session, or is being cleaned."""

    reason = Reason.NO_FREE_SLOT
    retry_after_s = RETRY_AFTER_S


class KvExhausted(ResourceExhausted):
    """The session's context cannot grow, so the session ends."""

    reason = Reason.KV_EXHAUSTED
    retry_after_s = RETRY_AFTER_S
    side = Side.SERVER


class DeadlineExceeded(SessionError):
    """A timer of the worker expired."""

    code = grpc.StatusCode.DEADLINE_EXCEEDED


class AttachTimeout(DeadlineExceeded):
    """Streams or the config did not arrive in time."""

    reason = Reason.ATTACH_TIMEOUT


class UnitTimeout(DeadlineExceeded):
    """The caller did not request a step of a unit, or did not read the answers, in time."""

    reason = Reason.UNIT_TIMEOUT


class UnitStalled(UnitTimeout):
    """The engine made no progress in time."""

    side = Side.SERVER


class IdleTimeout(DeadlineExceeded):
    """No unit came for the session's `idle_timeout`."""

    reason = Reason.IDLE_TIMEOUT
    side = None


class SessionLimit(DeadlineExceeded):
    """The session reached its `max_duration`."""

    reason = Reason.SESSION_LIMIT
    side = None


class Unavailable(SessionError):
    """This worker accepts no session now; another may."""

    code = grpc.StatusCode.UNAVAILABLE
    retry_after_s = RETRY_AFTER_S
    side = None


class Loading(Unavailable):
    """The model is not ready yet."""

    reason = Reason.LOADING


class Draining(Unavailable):
    """The worker is shutting down."""

    reason = Reason.DRAINING


class Internal(SessionError):
    """The worker has a fault."""

    code = grpc.StatusCode.INTERNAL
    side = Side.SERVER


class EngineFatal(Internal):
    """The device's state is lost; every session ends, and the worker exits."""

    reason = Reason.ENGINE_FATAL


class SessionFault(Internal):
    """This session alone cannot go on."""

    reason = Reason.INFERENCE_FAILED


class Cancelled(SessionError):
    """The caller cancelled a stream or vanished; the status has no reason."""

    code = grpc.StatusCode.CANCELLED
    side = None


def engine_error(reason: str, message: str, field: str) -> SessionError:
    """Return the error for a session that the engine cannot continue; `reason` is a `Reason` value.

    `field` is the path in the config, if the config is the reason.
    """
    if reason == Reason.CONFIG_INVALID:
        return ConfigInvalid(BadField(field, message))
    kinds: dict[str, type[SessionError]] = {
        Reason.KV_EXHAUSTED: KvExhausted,
        Reason.ENGINE_FATAL: EngineFatal,
    }
    return kinds.get(reason, SessionFault)(message)


def side_of(reason: str) -> Side:
    """Return the side that caused a failed unit, by its reason."""
    return Side.SERVER if reason == Reason.INFERENCE_FAILED else Side.CLIENT


def countable() -> set[tuple[str, Side]]:
    """Return reason and side of every error of a session or unit that a side has caused."""
    found: set[tuple[str, Side]] = {(reason.value, side_of(reason)) for reason in ITEM_REASONS}
    kinds = [SessionError]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.reason is not None and kind.side is not None:
            found.add((kind.reason.value, kind.side))
    return found
