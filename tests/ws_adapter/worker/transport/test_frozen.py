"""A worker that is there and says nothing is noticed by each transport, within the same bound."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.rpc import code_pb2

from antiphon.http2 import keepalive
from antiphon.semconv import Reason
from antiphon.v1 import inference_service_pb2 as pb
from tests.ws_adapter.support.calls import Caller, Way, message
from tests.ws_adapter.support.stage import until
from ws_adapter.worker.failure import reason_of
from ws_adapter.worker.transport import grpcio_channel

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


@pytest.mark.parametrize("transport", ["native", "grpcio"])
async def test_a_frozen_worker_is_lost_and_a_thawed_one_is_found_again(
    transport: Any, worker: "tuple[subprocess.Popen[str], str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (keepalive, grpcio_channel):
        monkeypatch.setattr(module, "KEEPALIVE_S", 1.0)
        monkeypatch.setattr(module, "KEEPALIVE_TIMEOUT_S", 1.0)
    process, address = worker
    lost: list[None] = []
    channel = Way(transport, "tcp", Path()).dial()(address, lambda: lost.append(None))
    caller = await Caller(channel, timeout_s=600.0).start()
    caller.call.write(message(1, 10))
    await until(lambda: caller.heard, PATIENCE_S)
    process.send_signal(signal.SIGSTOP)
    try:
        await until(lambda: caller.ends, PATIENCE_S)
    finally:
        process.send_signal(signal.SIGCONT)
    error = caller.ends[0]
    assert error is not None
    assert (error.code, reason_of(error)) == (code_pb2.UNAVAILABLE, Reason.WORKER_LOST)
    await until(lambda: lost, PATIENCE_S)
    question = message(2, 10)
    assert await channel.ask("Any", question, pb.PrefillRequest, timeout_s=PATIENCE_S) == question
    channel.close()
    await channel.wait_closed()


def test_what_a_frozen_worker_may_take_is_the_same_for_both() -> None:
    given = dict(grpcio_channel._options())
    asked = round(keepalive.KEEPALIVE_S * 1000)
    answered = round(keepalive.KEEPALIVE_TIMEOUT_S * 1000)
    assert given["grpc.keepalive_time_ms"] == asked
    assert given["grpc.keepalive_timeout_ms"] == given["grpc.http2.ping_timeout_ms"] == answered
    assert asked + answered == 15_000
