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

from antiphon.cli.output.failure import ExitCode, Failure
from antiphon.cli.processes.child import KILL_AFTER_S, Child, Ended

START_TIMEOUT_S: Final = 600.0
"""Longest that loading and warming up may take."""

DRAIN_TIMEOUT_S: Final = 90.0
"""Longest that either process may take to let running conversations finish."""

_PATIENCE_S: Final = 10.0

_FIND_WORKER_S: Final = 10.0
"""Longest that an adapter that listens may take to find a worker that is ready."""

FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S: Final = 30.0
"""Between the end of a process and its next start; doubles from the first to the longest."""

_STEADY_S: Final = 60.0
"""A process that ran this long had no fault from its start: the next pause is the first again."""

_MOST_FAILED_STARTS: Final = 5
"""In a row, before it is given up; of a process that was ready before."""

_QUIET: Final = ("--log-level", "warning")
"""In a terminal that somebody else reads only what is wrong belongs."""

_LONGEST_FOLDER: Final = 70
"""The path of a socket may have 107 bytes; `TMPDIR` can be longer than that alone."""


class Stack:
    """Starts both, starts again whichever dies, stops both.

    Leaving its block leaves no process and no file behind.
    """

    def __init__(self, worker: Sequence[str], adapter: Sequence[str], tell: Callable[[str], None]) -> None:
        """`worker` and `adapter` are the arguments of these commands, but for the socket between them.

        `tell` gets what the two print, and what is waited for.
        """
        self._arguments = {"worker": list(worker), "adapter": list(adapter)}
        self._addresses = {"worker": 1, "adapter": 2 if "--tls-cert" in adapter else 1}
        self._tell = tell
        self._children: dict[str, Child] = {}
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
            for child in reversed(self._children.values()):
                await child.stop(KILL_AFTER_S)
        finally:
            self.kill()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def start(self) -> Sequence[str]:
        """Starts the worker, then the adapter; returns the adapter's addresses when both are ready.

        Raises `Failure` if one ends before or takes too long.
        """
        target = self.worker_target
        self._arguments["worker"] += ["--listen", target, *_QUIET]
        self._arguments["adapter"] += ["--worker", target, *_QUIET]
        await self._start("worker")
        addresses = await self._start("adapter")
        await _until_ready(addresses[0])
        # An adapter that starts again is where clients know it to be, also if the port was any free one.
        for option, address in zip(("--port", "--tls-port"), addresses, strict=False):
            self._arguments["adapter"] += [option, str(urlsplit(address).port)]
        return addresses

    async def watch(self) -> Failure:
        """Starts again whichever ends although nobody asked it to; returns why one is beyond that."""
        keeping = [asyncio.create_task(self._keep(name)) for name in self._children]
        try:
            done, _ = await asyncio.wait(keeping, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.wait(keeping)
        return done.pop().result()

    def reload(self) -> None:
        """Has the adapter read its keys and its certificate again."""
        if "adapter" in self._children:
            self._children["adapter"].reload()

    async def drain(self) -> bool:
        """Lets running conversations finish, then stops both; returns whether both ended well."""
        running = [child for child in reversed(self._children.values()) if child.is_running]
        codes = [await child.stop(DRAIN_TIMEOUT_S) for child in running]
        return not any(codes)

    def kill(self) -> None:
        """Ends both at once."""
        for child in self._children.values():
            child.kill()

    async def _keep(self, name: str) -> Failure:
        clock = asyncio.get_running_loop().time
        pause_s, failed = FIRST_PAUSE_S, 0
        while True:
            begin = clock()
            end = Ended(name, "stopped unexpectedly", await self._children[name].wait())
            if clock() - begin >= _STEADY_S:
                pause_s = FIRST_PAUSE_S
            while True:
                self._tell(f"  {end.summary}; it is started again in {pause_s:g} s.")
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                try:
                    await self._start(name)
                except Ended as failure:
                    failed += 1
                    if failure.code == ExitCode.USAGE or failed == _MOST_FAILED_STARTS:
                        return failure
                    end = failure
                except Failure as failure:
                    return failure
                else:
                    break
            self._tell(f"  The {name} is ready again.")
            failed = 0

    async def _start(self, name: str) -> Sequence[str]:
        child = await Child.start(
            name, self._arguments[name], self._folder, self._tell, self._addresses[name]
        )
        self._children[name] = child
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
