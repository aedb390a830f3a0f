"""Processes under test: started on a given CPU, and measured from another process."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_CPUS = sorted(os.sched_getaffinity(0))
TESTED_CPU = _CPUS[0]
"""The CPU of the process under test; everything else runs on the last one."""

OTHER_CPU = _CPUS[-1]


@dataclass(frozen=True)
class Process:
    """A running process and the address that it announced."""

    pid: int
    address: str
    input: IO[str]
    output: IO[str]

    @property
    def port(self) -> int:
        """The port of its address."""
        return int(self.address.rpartition(":")[2])

    def cpu_s(self) -> float:
        """User and system time of all its threads so far, in seconds."""
        # The id of a process's CPU clock, as clock_getcpuclockid(3) computes it.
        return time.clock_gettime((~self.pid << 3) | 2)

    def thread_cpu_s(self, name: str) -> float:
        """Return the CPU time in seconds of the threads with the system name `name`."""
        tasks = [task for task in Path(f"/proc/{self.pid}/task").iterdir()]
        named = [task for task in tasks if (task / "comm").read_text().strip() == name]
        return sum(int((task / "schedstat").read_text().split()[0]) for task in named) / 1e9

    def resident_bytes(self) -> int:
        """Return its resident memory in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended by itself."""
        status = Path(f"/proc/{self.pid}/stat").read_text()
        return status.rpartition(")")[2].split()[0] == "Z"

    def say(self, line: str) -> None:
        """Write a line to its standard input."""
        self.input.write(line + "\n")
        self.input.flush()

    def ask(self) -> int:
        """Write `?` to its standard input and return the number that it answers."""
        self.say("?")
        return int(self.output.readline())


@contextmanager
def running(
    *arguments: str,
    cpu: int | None = OTHER_CPU,
    variables: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
) -> Iterator[Process]:
    """Run `python -m <arguments>` for the duration of the block, pinned to `cpu` unless that is None.

    `variables` are added to the environment. `log` receives the standard error; None leaves it unchanged. The
    program must print `... ready on <address>`. Raises `SystemExit` if it ends before.
    """
    command = [sys.executable, "-m", *arguments]
    pipe = subprocess.PIPE
    environment = {**os.environ, **(variables or {})}
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=log, text=True, env=environment
    ) as process:
        try:
            os.sched_setaffinity(process.pid, _CPUS if cpu is None else {cpu})
            assert process.stdin is not None
            assert process.stdout is not None
            for line in process.stdout:
                if "ready on " in line:
                    address = line.split()[-1].removeprefix("http://")
                    yield Process(process.pid, address, process.stdin, process.stdout)
                    break
            else:
                raise SystemExit(f"{arguments[0]} did not start.")
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def adapter(worker: str, *options: str, variables: Mapping[str, str] | None = None) -> Iterator[Process]:
    """Run `antiphon adapter` with the worker at `worker`, pinned to `TESTED_CPU`."""
    command = ("antiphon_command", "adapter", "--worker", worker, "--port", "0", "--log-level", "warning")
    with running(*command, *options, cpu=TESTED_CPU, variables=variables) as process:
        yield process
