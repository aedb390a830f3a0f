"""Clients of one scene: one in each state of a session."""

import asyncio
import json
import os
import signal
import sys
from asyncio import subprocess
from contextlib import suppress

from tests.failures.visits import STATES, Visit


class Party:
    """Six clients in this process, or with `is_process` in one of their own; `visits` by their states."""

    def __init__(self, url: str, name: str, *, is_process: bool = False) -> None:
        self.visits = {state: Visit(name, state) for state in STATES}
        self._url = url
        self._name = name
        self.is_process = is_process
        self._process: subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, *states: str) -> None:
        if not self.is_process:
            for state in states:
                self._tasks.append(asyncio.create_task(self.visits[state].run(self._url)))
            return
        if self._process is None:
            command = (sys.executable, "-m", "tests.failures.visits", self._url, self._name)
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, limit=2**20
            )
            self._tasks.append(asyncio.create_task(self._listen(self._process)))
        assert self._process.stdin is not None
        for state in states:
            self._process.stdin.write(f"{state}\n".encode())

    async def _listen(self, process: subprocess.Process) -> None:
        assert process.stdout is not None
        while line := await process.stdout.readline():
            told = json.loads(line)
            visit, event = self.visits[told["state"]], told["event"]
            if event["type"] == "end":
                visit.end(event["code"])
            else:
                visit.hear(event, told["at"])

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)

    async def leave(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        for outcome in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome
