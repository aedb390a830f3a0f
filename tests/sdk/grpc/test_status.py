"""Tests of the exceptions for the statuses of a worker."""

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2, status_pb2

from antiphon import AntiphonError, AuthError, ConnectError, ProtocolError, QueueFull, SessionClosed
from antiphon.contract import ERROR_DOMAIN, Reason
from antiphon.grpc.status import Status

Code = grpc.StatusCode


def status(code: grpc.StatusCode, reason: Reason | None) -> Status:
    """A status as a worker sends it; without a reason, as gRPC itself makes it."""
    if reason is None:
        return Status.of(code, "text", [])
    rich = status_pb2.Status(code=code.value[0], message="text")
    packed = Any()
    packed.Pack(error_details_pb2.ErrorInfo(reason=reason, domain=ERROR_DOMAIN))
    rich.details.append(packed)
    return Status.of(code, "text", [("grpc-status-details-bin", rich.SerializeToString())])


@pytest.mark.parametrize(
    ("code", "reason", "before", "after", "retryable"),
    [
        (Code.INVALID_ARGUMENT, Reason.CONFIG_INVALID, ProtocolError, ProtocolError, False),
        (Code.NOT_FOUND, Reason.MODEL_NOT_FOUND, ProtocolError, ProtocolError, False),
        (Code.UNIMPLEMENTED, Reason.MODE_UNSUPPORTED, ProtocolError, ProtocolError, False),
        (Code.FAILED_PRECONDITION, Reason.UNIT_OUT_OF_ORDER, ProtocolError, ProtocolError, False),
        (Code.ALREADY_EXISTS, Reason.STREAM_EXISTS, ProtocolError, ProtocolError, False),
        (Code.RESOURCE_EXHAUSTED, Reason.UNIT_WINDOW, ProtocolError, ProtocolError, False),
        (Code.UNAUTHENTICATED, Reason.LEASE_MISSING, AuthError, AuthError, True),
        (Code.PERMISSION_DENIED, Reason.STALE_LEASE, AuthError, AuthError, True),
        (Code.RESOURCE_EXHAUSTED, Reason.NO_FREE_SLOT, QueueFull, QueueFull, True),
        (Code.RESOURCE_EXHAUSTED, Reason.KV_EXHAUSTED, ConnectError, SessionClosed, None),
        (Code.UNAVAILABLE, Reason.DRAINING, ConnectError, SessionClosed, True),
        (Code.UNAVAILABLE, Reason.LOADING, ConnectError, SessionClosed, True),
        (Code.DEADLINE_EXCEEDED, Reason.ATTACH_TIMEOUT, ConnectError, SessionClosed, True),
        (Code.DEADLINE_EXCEEDED, Reason.UNIT_TIMEOUT, ConnectError, SessionClosed, None),
        (Code.ABORTED, Reason.LEASE_REVOKED, ConnectError, SessionClosed, None),
        (Code.INTERNAL, Reason.ENGINE_FATAL, ConnectError, SessionClosed, None),
    ],
    ids=lambda value: str(value) if isinstance(value, Reason) else "",
)
def test_status_of_a_worker_becomes_its_exception(
    code: grpc.StatusCode,
    reason: Reason,
    before: type[AntiphonError],
    after: type[AntiphonError],
    retryable: bool | None,
) -> None:
    for ready, kind in ((False, before), (True, after)):
        error = status(code, reason).error("unix:worker.sock", ready)
        assert type(error) is kind
        assert error.reason == reason
        assert "text" in str(error)
        assert retryable is None or error.retryable is retryable


@pytest.mark.parametrize(("code", "ready"), [(Code.INTERNAL, True), (Code.CANCELLED, False)])
def test_broken_or_cancelled_stream_is_a_lost_worker(code: grpc.StatusCode, ready: bool) -> None:
    error = status(code, None).error("unix:worker.sock", ready=ready)
    assert isinstance(error, SessionClosed if ready else ConnectError)
    assert (error.reason, error.retryable) == (Reason.WORKER_LOST, True)


def test_lost_worker_has_its_own_reason() -> None:
    before = status(Code.UNAVAILABLE, None).error("unix:worker.sock", ready=False)
    after = status(Code.UNAVAILABLE, None).error("unix:worker.sock", ready=True)
    assert isinstance(before, ConnectError)
    assert "unix:worker.sock" in str(before)
    assert isinstance(after, SessionClosed)
    assert after.code == Code.UNAVAILABLE.value[0]
    assert before.reason == after.reason == Reason.WORKER_LOST


def test_message_refused_by_grpc_has_its_own_reason() -> None:
    error = status(Code.RESOURCE_EXHAUSTED, None).error("unix:worker.sock", ready=True)
    assert isinstance(error, ProtocolError)
    assert error.reason == Reason.MESSAGE_TOO_LARGE


def test_status_with_reason_outweighs_status_without() -> None:
    told = [
        status(Code.OK, None),
        status(Code.INTERNAL, None),
        status(Code.UNAVAILABLE, None),
        status(Code.ABORTED, Reason.LEASE_REVOKED),
    ]
    assert sorted(told, key=lambda one: one.weight) == told
