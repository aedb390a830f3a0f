"""A line that loses all packets: the worker is in a network namespace of its own, behind two interfaces.

Both ends go on sending and hear nothing, not even that something has arrived, which no proxy can do to them.
Needs the right to make namespaces.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

import antiphon
from antiphon.session.duplex import DuplexSession
from tests.conformance.support.stack import Log, Stack, Worker, running_stack, wait_for
from tests.support.patience import PATIENCE_S

NOTICED_S = 15.0
"""How long a peer may be silent before it is taken for lost."""
SLOTS = 2
SECOND = np.zeros(antiphon.INPUT_RATE_HZ, np.float32)


class Line:
    def __init__(self) -> None:
        number = os.getpid() % 64
        self.namespace = f"antiphon-{number}"
        self.near, self.far = f"antiphon-n{number}", f"antiphon-f{number}"
        self.near_address, self.address = (f"10.213.47.{4 * number + end}" for end in (1, 2))

    def lay(self) -> None:
        ip("netns", "add", self.namespace)
        ip("link", "add", self.near, "type", "veth", "peer", "name", self.far, "netns", self.namespace)
        ip("address", "add", f"{self.near_address}/30", "dev", self.near)
        self._inside("address", "add", f"{self.address}/30", "dev", self.far)
        ip("link", "set", self.near, "up")
        self.mend()

    def lose(self) -> None:
        self._inside("link", "set", self.far, "down")

    def mend(self) -> None:
        self._inside("link", "set", self.far, "up")

    def remove(self) -> None:
        subprocess.run(["ip", "netns", "delete", self.namespace], capture_output=True, check=False)

    def _inside(self, *words: str) -> None:
        ip("-n", self.namespace, *words)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], capture_output=True, check=True)


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    try:
        line.lay()
    except (FileNotFoundError, subprocess.CalledProcessError):
        line.remove()
        pytest.skip("no network namespaces can be made here")
    yield line
    line.remove()


@contextmanager
def worker_behind(line: Line, key: Path) -> Iterator[Worker]:
    command = ["ip", "netns", "exec", line.namespace, sys.executable, "-m", "antiphon_command", "worker"]
    command += ["--listen", f"{line.address}:50051", "--insecure-grpc", "--worker-key-file", str(key)]
    command += ["--slots", str(SLOTS), "--no-admission", "--drain-timeout-s", "0"]
    path = key.with_name("log")
    with path.open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT)
    try:
        log = Log(path)
        yield Worker(process, log, wait_for(process, log, "worker ready on "))
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture
def stack(line: Line, tmp_path: Path) -> Iterator[Stack]:
    key = tmp_path / "key"
    key.write_text("0123456789abcdef")
    with ExitStack() as exits:
        worker = exits.enter_context(worker_behind(line, key))
        yield exits.enter_context(running_stack(worker, options=("--worker-key-file", str(key))))
        line.mend()


async def unit(session: DuplexSession) -> None:
    await session.send_audio(SECOND)
    async with asyncio.timeout(PATIENCE_S):
        await anext(session)


async def rest(session: DuplexSession) -> None:
    async with asyncio.timeout(NOTICED_S + PATIENCE_S):
        async for _ in session:
            pass


async def test_a_line_that_loses_everything_ends_the_session_once_and_leaves_nothing(
    line: Line, stack: Stack
) -> None:
    async with antiphon.connect(stack.url("")) as client:
        async with client.duplex() as session:
            await unit(session)
            line.lose()
            await session.send_audio(SECOND)
            with pytest.raises(antiphon.SessionClosed) as closed:
                await rest(session)
            assert closed.value.reason == "backend_error"
        line.mend()
        # The worker has noticed by itself: nobody could tell it.
        await stack.until(ready=True, free_slots=SLOTS)
        async with client.duplex() as again:
            await unit(again)
