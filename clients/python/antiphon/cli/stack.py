"""A worker and an adapter on this machine, as two child processes over a private Unix socket."""

import asyncio
import http
import http.client
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from antiphon.cli.child import KILL_AFTER_S, Child
from antiphon.cli.failure import Failure

START_TIMEOUT_S: Final = 600.0
"""Longest that loading and warming up may take."""

DRAIN_TIMEOUT_S: Final = 90.0
"""Longest that either process may take to let running conversations finish."""

_PATIENCE_S: Final = 10.0

_FIND_WORKER_S: Final = 10.0
"""Longest that an adapter that listens may take to find a worker that is ready."""

_QUIET: Final = ("--log-level", "warning")
"""In a terminal that somebody else reads only what is wrong belongs."""

_LONGEST_FOLDER: Final = 70
"""The path of a socket may have 107 bytes; `TMPDIR` can be longer than that alone."""


class Stack:
    """Starts both, watches both, stops both. Leaving its block leaves no process and no file behind."""

    def __init__(self, worker: Sequence[str], adapter: Sequence[str], tell: Callable[[str], None]) -> None:
        """`worker` and `adapter` are the arguments of these commands, but for the socket between them.

        `tell` gets what the two print, and what is waited for.
        """
        self._worker_arguments = worker
        self._adapter_arguments = adapter
        self._tell = tell
        self._children: list[Child] = []
        self._folder = ""

    @property
    def worker_target(self) -> str:
        """The worker's gRPC address."""
        return f"unix:{Path(self._folder) / 'worker.sock'}"

    async def __aenter__(self) -> Self:
        usual = tempfile.gettempdir()
        place = usual if len(usual) < _LONGEST_FOLDER else "/tmp"
        self._folder = tempfile.mkdtemp(prefix="antiphon-", dir=place)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # The adapter goes first: it holds sessions on the worker.
            for child in reversed(self._children):
                await child.stop(KILL_AFTER_S)
        finally:
            self.kill()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def start(self) -> str:
        """Starts the worker, then the adapter; returns the adapter's address when both are ready.

        Raises `Failure` if one ends before or takes too long.
        """
        target = self.worker_target
        await self._start("worker", ["--listen", target, *_QUIET, *self._worker_arguments])
        address = await self._start("adapter", ["--worker", target, *_QUIET, *self._adapter_arguments])
        await _until_ready(address)
        return address

    async def died(self) -> Failure:
        """Returns when one of the two has ended although nobody asked it to, with what to say about it."""
        waiting = {asyncio.create_task(child.wait()): child for child in self._children}
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        first = done.pop()
        return waiting[first].died(first.result())

    async def drain(self) -> bool:
        """Lets running conversations finish, then stops both; returns whether both ended well."""
        codes = [await child.stop(DRAIN_TIMEOUT_S) for child in reversed(self._children)]
        return not any(codes)

    def kill(self) -> None:
        """Ends both at once."""
        for child in self._children:
            child.kill()

    async def _start(self, name: str, arguments: Sequence[str]) -> str:
        child = await Child.start(name, arguments, self._folder, self._tell)
        self._children.append(child)
        patience = asyncio.create_task(self._report_waiting(name))
        try:
            return await child.ready(START_TIMEOUT_S)
        finally:
            patience.cancel()

    async def _report_waiting(self, name: str) -> None:
        """A step that takes long says what it waits for."""
        seconds = 0.0
        while True:
            await asyncio.sleep(_PATIENCE_S)
            seconds += _PATIENCE_S
            self._tell(f"  still waiting for the {name} to load and warm up: {seconds:.0f} s")


async def _until_ready(address: str) -> None:
    """Waits until the adapter says that a session could start; raises `Failure` if it takes too long."""
    try:
        async with asyncio.timeout(_FIND_WORKER_S):
            while True:
                if await asyncio.to_thread(_is_ready, address):
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise Failure(f"The adapter did not find the worker within {_FIND_WORKER_S:.0f} s.") from None


def _is_ready(address: str) -> bool:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=_FIND_WORKER_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
