"""A child process that does not outlive this one."""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from antiphon_command.arguments.configuration import without_settings
from antiphon_command.output.failure import ExitCode, Failure

KILL_AFTER_S: Final = 5.0
"""The seconds that a process may take to end after a kill."""

GUARDED = "antiphon_command.guarded"
"""The module that runs the command in a child process."""

_LONGEST_LINE: Final = 1 << 20
_CODES_WITH_A_MEANING: Final = frozenset({ExitCode.USAGE, ExitCode.DEVICE_LOST})


class Ended(Failure):
    """The failure of a child that ended on its own."""

    def __init__(self, name: str, what: str, code: int) -> None:
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self.summary = f"The {name} {what} ({how})"
        # A process that refuses its configuration has already reported the reason.
        text = "" if code == ExitCode.USAGE else f"{self.summary}. Its own messages are above."
        super().__init__(text, code if code in _CODES_WITH_A_MEANING else ExitCode.FAILED)


@dataclass(frozen=True)
class Program:
    """The program of a child.

    It is ready once `addresses` lines have matched `ready`, whose only group is an address.
    """

    words: Sequence[str]
    ready: re.Pattern[str]
    addresses: int = 1
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The additions to the environment, including keys."""
    passed_on: re.Pattern[str] = re.compile("")
    """The pattern of the other output lines that are passed on."""

    @classmethod
    def antiphon(
        cls,
        command: str,
        arguments: Sequence[str],
        scratch: str,
        addresses: int = 1,
        variables: Mapping[str, str] | None = None,
    ) -> "Program":
        """Return the program `antiphon COMMAND ARGUMENTS...`.

        It removes the folder `scratch` if this process dies.
        """
        return cls(
            (sys.executable, "-m", GUARDED, scratch, command, *arguments),
            re.compile(rf"{command} (?:ready|administration) on (\S+)"),
            addresses,
            # Without this variable the awaited lines would stay in the child's buffer.
            {"PYTHONUNBUFFERED": "1", **(variables or {})},
        )


class Child:
    """One program in a process of its own.

    It is outside this process's group, so that Ctrl-C reaches only the parent. Its standard input is a silent
    pipe from the parent: when the parent dies, however that happens, the pipe ends and
    `antiphon_command.guarded` ends the process.
    """

    def __init__(
        self, name: str, program: Program, process: asyncio.subprocess.Process, tell: Callable[[str], None]
    ) -> None:
        self.name = name
        self.ready_at: float | None = None
        """The time of readiness on the clock of the event loop."""
        self._program = program
        self._process = process
        self._addresses: list[str] = []
        self._ready = asyncio.Event()
        self._outdated = False
        self._tell = tell
        self._reader = asyncio.create_task(self._read_output(), name=f"output of {name}")

    @classmethod
    async def start(cls, name: str, program: Program, tell: Callable[[str], None]) -> "Child":
        """Start a child; `name` is for messages, and `tell` gets each line it prints except its addresses."""
        process = await asyncio.create_subprocess_exec(
            *program.words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            process_group=0,
            env={**without_settings(os.environ), **program.variables},
            limit=_LONGEST_LINE,
        )
        return cls(name, program, process, tell)

    async def ready(self, timeout_s: float) -> list[str]:
        """Wait until the child has printed all addresses, and return them.

        Raises `Failure` if it ends before, or is not ready in time.
        """
        gone = asyncio.create_task(self.wait())
        ready = asyncio.create_task(self._ready.wait())
        either: set[asyncio.Task[Any]] = {ready, gone}
        try:
            await asyncio.wait(either, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            ready.cancel()
        if self._ready.is_set():
            return self._addresses
        if gone.done() and not gone.cancelled():
            raise Ended(self.name, "did not start", gone.result())
        raise Failure(f"The {self.name} was not ready after {timeout_s:.0f} s. Its output may say why.")

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    async def wait(self) -> int:
        """Return the exit code once the process has ended and all output was passed on."""
        code = await self._process.wait()
        await asyncio.wait({self._reader})
        return code

    async def stop(self, grace_s: float) -> int:
        """Terminate the process, kill it after `grace_s`, and return its exit code."""
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            self.kill()
            return await self.wait()

    def kill(self) -> None:
        """Kill the process at once."""
        self._signal(signal.SIGKILL)

    def reload(self) -> None:
        """Make the process read its files again: now, or when it is ready and handles the signal."""
        self._outdated = not self._ready.is_set()
        if self._ready.is_set():
            self._signal(signal.SIGHUP)

    @property
    def is_running(self) -> bool:
        """Whether the process is still running."""
        return self._process.returncode is None

    def _signal(self, number: signal.Signals) -> None:
        # `Popen.send_signal` polls first, and so may take the exit code away from asyncio.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    async def _read_output(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip()
            found = None if self._ready.is_set() else self._program.ready.fullmatch(text)
            if found is None:
                if self._program.passed_on.search(text):
                    self._tell(text)
                continue
            self._addresses.append(found[1])
            if len(self._addresses) == self._program.addresses:
                self.ready_at = asyncio.get_running_loop().time()
                self._ready.set()
                if self._outdated:
                    self.reload()
