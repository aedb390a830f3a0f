"""A process of ours that runs a command and does not outlive this one."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from antiphon.cli.failure import ExitCode, Failure

KILL_AFTER_S: Final = 5.0
"""How long a process may take to end that was told to end at once."""

GUARDED = "antiphon.cli.guarded"
"""The module that a child process runs."""

_LONGEST_LINE: Final = 1 << 20
_CODES_WITH_A_MEANING: Final = frozenset({ExitCode.USAGE, ExitCode.DEVICE_LOST})


class Child:
    """One command of `antiphon` in a process of its own.

    It is outside this process's group, so that Ctrl-C reaches only us, and its standard input is a pipe from
    us that says nothing: when we die, however that happens, the pipe ends and `antiphon.cli.guarded` ends
    the process.
    """

    def __init__(self, name: str, process: asyncio.subprocess.Process, tell: Callable[[str], None]) -> None:
        self.name = name
        self._process = process
        self._ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tell = tell
        self._reader = asyncio.create_task(self._read_output(), name=f"output of {name}")

    @classmethod
    async def start(
        cls, name: str, arguments: Sequence[str], scratch: str, tell: Callable[[str], None]
    ) -> "Child":
        """Starts `antiphon NAME ARGUMENTS...`.

        `tell` gets each line it prints, except the one that says it is ready. `scratch` is a folder that the
        child removes if it finds this process dead.
        """
        # Without this the line that is waited for would stay in the child's buffer.
        unbuffered = os.environ | {"PYTHONUNBUFFERED": "1"}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            GUARDED,
            scratch,
            name,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
            env=unbuffered,
            limit=_LONGEST_LINE,
        )
        return cls(name, process, tell)

    async def ready(self, timeout_s: float) -> str:
        """Waits until the command prints `NAME ready on ADDRESS` and returns the address.

        Raises `Failure` if it ends before, or is not ready in time.
        """
        gone = asyncio.create_task(self.wait())
        either: set[asyncio.Future[Any]] = {self._ready, gone}
        try:
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
        if self._ready.done():
            return self._ready.result()
        if gone.done() and not gone.cancelled():
            raise self._failure("did not start", gone.result())
        raise Failure(f"The {self.name} was not ready after {timeout_s:.0f} s. Its output may say why.")

    async def wait(self) -> int:
        """Returns the exit code, when there is one and all output was passed on."""
        code = await self._process.wait()
        await asyncio.wait({self._reader})
        return code

    async def stop(self, grace_s: float) -> int:
        """Asks the process to end, ends it after `grace_s` if it did not, and returns its exit code."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """Ends the process at once."""
        self._signal(signal.SIGKILL)

    def died(self, code: int) -> Failure:
        """What to say about a process that ended although nobody asked it to."""
        return self._failure("stopped unexpectedly", code)

    def _signal(self, number: signal.Signals) -> None:
        # Not Popen's way, which polls first and so may take the exit code away from asyncio.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def _failure(self, what: str, code: int) -> Failure:
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        text = f"The {self.name} {what} ({how}). Its own messages are above."
        return Failure(text, code if code in _CODES_WITH_A_MEANING else ExitCode.FAILED)

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        marker = f"{self.name} ready on "
        async for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip()
            if text.startswith(marker) and not self._ready.done():
                self._ready.set_result(text.removeprefix(marker))
            else:
                self._tell(text)
