"""A worker as a process: readiness line, signals, exit codes."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest

from antiphon.semconv import Reason
from inference_service.units import Stream
from tests.worker.caller import Caller, channel_to, soon

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Process:
    """A worker in a process of its own."""

    process: asyncio.subprocess.Process
    address: str

    async def exit_code(self) -> int:
        return await soon(self.process.wait())


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[Process]:
    """Starts a scripted worker and waits until it is ready; killed on leaving the block."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.scripted_worker", *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert started.stdout is not None
    try:
        async with asyncio.timeout(20):
            line = (await started.stdout.readline()).decode()
        assert line.startswith("worker ready on "), line
        yield Process(started, line.removeprefix("worker ready on ").strip())
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_an_idle_worker_exits_with_0_on_a_signal(number: signal.Signals) -> None:
    async with process() as worker:
        worker.process.send_signal(number)
        assert await worker.exit_code() == 0


async def test_two_signals_end_a_busy_worker_at_once() -> None:
    async with process("--drain-timeout-s", "20") as worker, channel_to(worker.address) as channel:
        caller = await Caller(channel).open()
        await caller.configure()
        worker.process.send_signal(signal.SIGTERM)
        assert (await caller.read(Stream.GENERATE)).HasField("go_away")
        worker.process.send_signal(signal.SIGTERM)
        assert (await caller.end()).reason == Reason.DRAINING
        assert await worker.exit_code() == 0


async def test_a_lost_device_exits_with_3() -> None:
    async with process("--script", "fatal") as worker, channel_to(worker.address) as channel:
        caller = await Caller(channel).open()
        await caller.configure()
        await caller.unit(1)
        await caller.send_last_unit(2)
        assert (await caller.end()).reason == Reason.ENGINE_FATAL
        assert await worker.exit_code() == 3


async def test_a_killed_worker_is_a_broken_transport() -> None:
    async with process("--script", "hang") as worker, channel_to(worker.address) as channel:
        caller = await Caller(channel).open()
        await caller.configure()
        await caller.send_unit(1)
        worker.process.kill()
        ending = await caller.end()
        assert (ending.code, ending.reason) == (grpc.StatusCode.UNAVAILABLE, "")


async def test_two_workers_cannot_share_a_port() -> None:
    async with process() as worker:
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.scripted_worker", "--listen", worker.address, cwd=ROOT
        )
        assert await soon(second.wait()) == 2
