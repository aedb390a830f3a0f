"""A frozen worker is noticed by keepalive pings."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.rpc import code_pb2

from antiphon.contract import Reason
from tests.ws_adapter.support.calls import Caller, Way, ask
from tests.ws_adapter.support.stage import until
from ws_adapter.worker.failure import reason_of
from ws_adapter.worker.transport import channel as transport

ROOT = Path(__file__).parents[4]
PATIENCE_S = 40.0
"""For a process and its two seconds, on a busy machine."""


@pytest.fixture(scope="module")
def worker() -> Iterator["tuple[subprocess.Popen[str], str]"]:
    command = [sys.executable, "-m", "tests.ws_adapter.support.echo_worker"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


@pytest.mark.long
async def test_frozen_worker_is_lost_and_thawed_worker_is_found_again(
    worker: "tuple[subprocess.Popen[str], str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = ("keepalive_time_ms", "keepalive_timeout_ms", "http2.ping_timeout_ms")
    eager = {f"grpc.{name}": 1000 for name in patient}
    options = tuple((name, eager.get(name, value)) for name, value in transport.CLIENT_OPTIONS)
    monkeypatch.setattr(transport, "CLIENT_OPTIONS", options)
    process, address = worker
    lost: list[None] = []
    channel = Way("tcp", Path()).dial()(address, lambda: lost.append(None))
    caller = await Caller(channel, timeout_s=600.0).answered()
    process.send_signal(signal.SIGSTOP)
    try:
        await until(lambda: caller.ends, PATIENCE_S)
    finally:
        process.send_signal(signal.SIGCONT)
    error = caller.ends[0]
    assert error is not None
    assert (error.code, reason_of(error)) == (code_pb2.UNAVAILABLE, Reason.WORKER_LOST)
    await until(lambda: lost, PATIENCE_S)
    await ask(channel, 2, PATIENCE_S)
    channel.close()
    await channel.wait_closed()


def test_frozen_worker_is_noticed_within_15_s() -> None:
    given = dict(transport._options())
    assert given["grpc.keepalive_time_ms"] == 10_000
    assert given["grpc.keepalive_timeout_ms"] == given["grpc.http2.ping_timeout_ms"] == 5_000
