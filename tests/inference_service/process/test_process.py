"""A worker as a process: readiness line, signals, exit codes."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from antiphon.contract import METADATA_LEASE, Reason
from antiphon.grpc import get_info
from antiphon_command.arguments.shared_key import WORKER_KEY as KEY_VARIABLE
from antiphon_service.leases import DEFAULT_POOL, lease_mac
from inference_service.session.units import Stream
from tests.cli.support.process import run, run_cli
from tests.conformance.support.stack import running, wait_for
from tests.inference_service.support.caller import Caller, channel_to
from tests.support.forks import process as forks
from tests.support.patience import PATIENCE_S, START_S

MODULE = "tests.support.scripted_worker"


@dataclass(frozen=True)
class Process:
    """A worker in a process of its own."""

    process: forks.Process
    address: str

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[Process]:
    """Starts a scripted worker and waits until it is ready; killed on leaving the block."""
    with running(MODULE, *arguments) as (worker, log):
        try:
            yield Process(worker, await asyncio.to_thread(wait_for, worker, log, "worker ready on "))
        finally:
            worker.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_worker_exits_with_0_on_a_signal(number: signal.Signals) -> None:
    async with process() as worker:
        worker.process.send_signal(number)
        assert await worker.exit_code() == 0


async def test_an_engine_that_hangs_exits_with_3() -> None:
    async with process("--script", "stall", "--step-s", "1") as worker, channel_to(worker.address) as channel:
        caller, neighbour = await Caller(channel).ready(), await Caller(channel).ready()
        await caller.unit(1)
        await caller.send_last_unit(2)
        for session in (caller, neighbour):
            assert (await session.end()).reason == Reason.ENGINE_FATAL
        assert await worker.exit_code() == 3


def test_an_exit_with_3_waits_for_no_thread() -> None:
    assert run([sys.executable, "-c", _HANGING], None, None, START_S).code == 3


_HANGING = """
import threading
from antiphon_command.command import leave, main
from inference_service import app

async def serve(options, on_ready, **others):
    threading.Thread(target=threading.Event().wait).start()
    return app.EXIT_DEVICE_LOST

app.serve = serve
leave(main(["worker"]))
"""


def test_a_worker_that_cannot_load_its_engine_exits_with_1() -> None:
    failed = run([sys.executable, "-m", MODULE, "--fault"], None, None, START_S)
    assert failed.code == 1
    assert "no room for the model" in failed.err


@pytest.mark.parametrize(
    ("arguments", "environment", "remedy"),
    [
        ([], {KEY_VARIABLE: "too short"}, "openssl rand -hex 32"),
        (["--worker-key-file", "/does/not/exist"], {}, "/does/not/exist"),
        ([], {"OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER"),
    ],
    ids=["short key", "no file", "no sampler"],
)
def test_a_worker_that_may_not_start_so_says_why_and_exits_with_2(
    arguments: list[str], environment: dict[str, str], remedy: str
) -> None:
    failed = run_cli("worker", *arguments, env=os.environ | environment)
    assert failed.code == 2
    assert remedy in failed.err.splitlines()[-1]


async def test_a_key_from_a_file_counts_before_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "another key, as long")
    file = tmp_path / "worker.key"
    file.write_text("the key of the file\n")
    async with process("--worker-key-file", str(file)) as worker:
        worker_id = (await get_info(worker.address)).worker_id
        mac = lease_mac(b"the key of the file", DEFAULT_POOL, worker_id, 0, 1)
        async with channel_to(worker.address) as channel:
            with_lease = Caller(channel, None, (METADATA_LEASE, f"0:1:{mac}"))
            await with_lease.ready()


async def test_a_worker_that_cannot_clean_up_ends_at_the_second_signal() -> None:
    async with process("--slow-cleanup") as worker, channel_to(worker.address) as channel:
        caller = await Caller(channel).ready()
        worker.process.send_signal(signal.SIGTERM)
        assert (await caller.read(Stream.GENERATE)).HasField("go_away")
        worker.process.send_signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
