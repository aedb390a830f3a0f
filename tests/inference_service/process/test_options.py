"""Refuse options of a worker that cannot work, contradict each other, or are not safe."""

import re
from pathlib import Path
from typing import Any

import pytest

from inference_service.app import EXIT_CONFIGURATION, Worker, serve
from inference_service.errors import ConfigurationError
from inference_service.options import WorkerOptions
from inference_service.session.machine import Limits
from tests.support.scripted_engine import ScriptedEngine, telemetry

KEY = b"a key of 16 byte"
REDIS = {"dispatcher": "redis://h"}
CERT = {"tls_cert": Path("c"), "tls_key": Path("k")}
DISPATCHER_CERT = {"dispatcher_cert": Path("c.pem"), "dispatcher_cert_key": Path("c.key")}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"slots": 0}, "slots"),
        ({"threads": 0}, "threads"),
        ({"drain_timeout_s": -1}, "drain_timeout_s"),
        ({"drain_timeout_s": float("inf")}, "drain_timeout_s"),
        ({"context_limit": 0}, "context_limit"),
        ({"worker_id": "w\n1"}, "worker_id"),
        ({"worker_key": b""}, "worker key"),
        ({"worker_key": b"x" * 15}, "worker key"),
        ({"admin_key": b"short"}, "admin key must"),
        ({"admin_key": b"sixteen bytes, with blanks"}, "admin key must"),
        ({"admin_key": "sixteen characters é".encode()}, "admin key must"),
        ({"tls_cert": Path("c")}, "Pass --tls-cert and --tls-key."),
        ({"tls_key": Path("k")}, "Pass --tls-cert and --tls-key."),
        ({"tls_client_ca": Path("a")}, "tls_client_ca means nothing without TLS."),
        ({**CERT, "listen": "unix:/w"}, "A Unix socket has no TLS."),
        ({**CERT, "insecure_grpc": True}, "Leave out --insecure-grpc or --tls-cert"),
        ({"advertise": "10.0.0.1:50051"}, "advertise means nothing"),
        ({"dispatcher_ca": Path("ca.pem")}, "dispatcher_ca means nothing"),
        (DISPATCHER_CERT, "dispatcher_cert means nothing"),
        ({"dispatcher": "rediss://h", "dispatcher_cert": Path("c.pem")}, "needs its key"),
        ({"unleased_slots": 1}, "unleased_slots means nothing"),
        ({**REDIS, "unleased_slots": 3, "slots": 2}, "unleased_slots must be"),
        ({**REDIS, "unleased_slots": -1}, "unleased_slots must be"),
        ({**REDIS, "advertise": "worker"}, "Adapters cannot dial"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        WorkerOptions(**options)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({}, "--worker-key-file"),
        ({"insecure_grpc": True}, "--worker-key-file"),
        ({"worker_key": KEY}, "--insecure-grpc"),
        ({"worker_key": KEY, "insecure_grpc": True, "grpc_compression": "gzip"}, "--tls-client-ca"),
    ],
    ids=["nothing", "no key", "no permission", "compression"],
)
def test_worker_beyond_loopback_needs_keys_or_certificates_of_callers(
    options: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        Worker(WorkerOptions(listen="0.0.0.0:0", **options), ScriptedEngine().start, Limits(), telemetry())


async def test_a_window_that_cannot_be_is_a_matter_of_configuration() -> None:
    options = WorkerOptions(listen="127.0.0.1:0", window_high=10, window_low=20)
    assert await serve(options, factory=ScriptedEngine().start) == EXIT_CONFIGURATION
