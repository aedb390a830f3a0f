"""A worker and an adapter as processes, which always end with the test."""

import json
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from asyncio import timeout, to_thread
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from tests.conformance.support.client import Client, RawClient
from tests.support.forks.process import Process, start
from tests.support.patience import PATIENCE_S, START_S
from tests.support.scripted_engine import Play, Script
from tests.ws_adapter.support.process import ADAPTER_OPTIONS

_KNOWN = "next script is known"


class Log:
    """The log file of a process."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def text(self) -> str:
        """The whole log so far."""
        return self.path.read_text(errors="replace")

    def count(self, marker: str) -> int:
        """Return the number of lines that contain `marker`."""
        return sum(marker in line for line in self.text.splitlines())

    def wait_for(self, marker: str, count: int) -> None:
        """Waits until so many lines hold `marker`."""
        end = time.monotonic() + PATIENCE_S
        while self.count(marker) < count:
            assert time.monotonic() < end, f"{marker!r} is not there {count} times:\n{self.text}"
            time.sleep(0.02)

    def after(self, marker: str) -> str | None:
        """The rest of the first line that begins with `marker`."""
        lines = (line for line in self.text.splitlines() if line.startswith(marker))
        return next((line.removeprefix(marker).strip() for line in lines), None)


@contextmanager
def running(module: str, *arguments: str) -> Iterator[tuple[Process, Log]]:
    """A Python process of `module`, ended on leaving the block."""
    with tempfile.TemporaryDirectory(prefix="antiphon-") as folder:
        path = Path(folder) / "log"
        with path.open("wb") as file:
            process = start(module, *arguments, output=file)
        try:
            yield process, Log(path)
        finally:
            process.stdin.close()
            _end(process)


def _end(process: Process) -> None:
    """Send SIGTERM twice, so that a server does not wait for its sessions."""
    for _ in range(2):
        process.terminate()
        try:
            process.wait(0.5)
            return
        except subprocess.TimeoutExpired:
            pass
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


def wait_for(process: Process, log: Log, marker: str) -> str:
    """Wait for a line that begins with `marker`; return its rest."""
    end = time.monotonic() + START_S
    while (told := log.after(marker)) is None:
        assert process.poll() is None, f"ended with {process.returncode}:\n{log.text}"
        assert time.monotonic() < end, f"not ready:\n{log.text}"
        time.sleep(0.02)
    return told


@dataclass(frozen=True)
class Worker:
    """A worker process; `target` is its address for an adapter."""

    process: Process
    log: Log
    target: str

    def release(self, key: str, step: str, unit: int) -> None:
        """Release a held unit of the session with this key; for prompted workers."""
        self._tell(f"release {key} {step} {unit}")

    def next(self, *plays: Play, **script: Any) -> None:
        """Set the script of the next session without a prompt; for prompted workers."""
        known = self.log.count(_KNOWN)
        self._tell(f"next {Script(plays, **script).as_prompt()}")
        self.log.wait_for(_KNOWN, known + 1)

    def _tell(self, line: str) -> None:
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()


@contextmanager
def scripted_worker(*arguments: str) -> Iterator[Worker]:
    """Run `tests.support.scripted_worker`."""
    with running("tests.support.scripted_worker", "--listen", "127.0.0.1:0", *arguments) as (process, log):
        yield Worker(process, log, wait_for(process, log, "worker ready on "))


@contextmanager
def prompted_worker(slots: int = 24, *arguments: str) -> Iterator[Worker]:
    """Run a scripted worker that plays the script in each session's system prompt."""
    with scripted_worker("--prompted", "--slots", str(slots), *arguments) as worker:
        yield worker


@contextmanager
def transcribing_worker(slots: int = 8, *arguments: str) -> Iterator[Worker]:
    """Run a scripted worker for transcription, by scripts of `Worker.next`, and for video sessions."""
    with prompted_worker(slots, "--modes", "transcribe,audio,video", *arguments) as worker:
        yield worker


@contextmanager
def chatting_worker(slots: int = 8, *arguments: str) -> Iterator[Worker]:
    """Run a scripted worker for chats and video sessions; system messages of turns are scripts, too."""
    with prompted_worker(slots, "--modes", "chat,audio,video", *arguments) as worker:
        yield worker


@contextmanager
def shipped_worker(slots: int = 4, *options: str) -> Iterator[Worker]:
    """Run the worker that users get: with the package's checkpoint."""
    arguments = ("worker", "--listen", "127.0.0.1:0", "--slots", str(slots), *options)
    with running("antiphon_command", *arguments) as (process, log):
        yield Worker(process, log, wait_for(process, log, "worker ready on "))


@dataclass(frozen=True)
class Stack:
    """An adapter in front of workers; `worker` is the first of them."""

    process: Process
    log: Log
    address: str
    worker: Worker

    def url(self, target: str) -> str:
        """The WebSocket address of a path with its query."""
        return self.address.replace("http://", "ws://") + target

    @asynccontextmanager
    async def client(self, target: str = "/v1/realtime?mode=audio", **options: Any) -> AsyncIterator[Client]:
        """A client at `target`; `options` are those of `websockets`."""
        options = {"max_size": None, "compression": None, "close_timeout": 1, **options}
        async with connect(self.url(target), **options) as socket:
            client = Client(socket)
            yield client
            client.observer.end()

    @asynccontextmanager
    async def raw_client(self, target: str = "/v1/realtime?mode=audio") -> AsyncIterator[RawClient]:
        """Yield a client that builds its own frames."""
        client = await RawClient.connect(self.address.removeprefix("http://"), target)
        try:
            yield client
        finally:
            client.vanish()

    async def request(self, path: str, method: str = "GET") -> tuple[int, Any]:
        """Status and JSON body of an HTTP request."""
        return await to_thread(self.ask_http, path, method)

    def ask_http(self, path: str, method: str = "GET") -> tuple[int, Any]:
        """Return status and JSON body of an HTTP request; block until it is answered."""
        request = urllib.request.Request(self.address + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def wait_until(self, **state: Any) -> None:
        """Wait until `/ready` reports `state`."""
        end = time.monotonic() + PATIENCE_S
        while not state.items() <= (told := self.ask_http("/ready")[1]).items():
            assert time.monotonic() < end, f"{told} never became {state}\n{self.log.text}"
            time.sleep(0.02)

    async def until(self, **state: Any) -> None:
        """Wait until `/ready` reports `state`, without blocking the event loop."""
        await to_thread(lambda: self.wait_until(**state))

    def wait_until_nothing_runs(self) -> None:
        """Waits until no session has a slot."""
        end = time.monotonic() + PATIENCE_S
        while self.ask_http("/api/queue")[1]["running_tasks"]:
            assert time.monotonic() < end, self.log.text
            time.sleep(0.02)

    async def until_queue(self, length: int) -> None:
        """Wait until `length` clients wait for a slot."""
        async with timeout(PATIENCE_S):
            while (await self.request("/api/queue"))[1]["queue_length"] != length:
                pass


@contextmanager
def running_stack(*workers: Worker, options: tuple[str, ...] = (), wait: bool = True) -> Iterator[Stack]:
    """An adapter with these command line options; with `wait` it knows its workers already."""
    targets = ",".join(worker.target for worker in workers)
    arguments = ("adapter", "--port", "0", "--worker", targets, *ADAPTER_OPTIONS, *options)
    with running("antiphon_command", *arguments) as (process, log):
        stack = Stack(process, log, wait_for(process, log, "adapter ready on "), workers[0])
        if wait:
            stack.wait_until(ready=True, workers=len(workers))
        yield stack
