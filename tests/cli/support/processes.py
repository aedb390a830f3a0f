"""A command that runs until it is stopped, with checks for leftover processes and files."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGTERM

from tests.support.patience import PATIENCE_S, START_S


def wait_until(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """Returns as soon as the condition holds; fails if it does not in time."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)


def processes_naming(text: str) -> dict[int, str]:
    """Process id -> command line, for those whose command line holds the text."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if text in command:
            found[int(folder.name)] = command
    return found


async def line_with(stream: asyncio.StreamReader | None, text: str) -> str:
    """Return the first line with `text`; fail if the stream ends before."""
    assert stream is not None
    async with asyncio.timeout(START_S):
        while text not in (line := (await stream.readline()).decode()):
            assert line, f"the stream ended before {text!r}"
    return line


class Serve:
    """`antiphon serve` with a scripted worker; `scratch` is where its temporary files go."""

    def __init__(
        self, script: str, scratch: Path, *arguments: str | Path, terminal: str | None = None
    ) -> None:
        self.scratch = scratch
        self.banner = ""
        self._log = scratch / "stderr.log"
        program = [sys.executable, "-m", "tests.cli.support.scripted_antiphon"]
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*program, "serve", "--port", "0", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"TMPDIR": str(scratch), "ANTIPHON_TEST_SCRIPT": script},
                start_new_session=True,
                preexec_fn=None if terminal is None else lambda: os.close(os.open(terminal, os.O_RDWR)),
            )

    def wait_ready(self) -> None:
        """Reads the banner to its last line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.banner += line
            if "Ctrl-C" in line:
                return
        raise AssertionError(f"no banner: {self.errors}")

    @property
    def errors(self) -> str:
        """The server's standard error so far."""
        return self._log.read_text()

    def address(self, name: str) -> str:
        """An address of the banner."""
        found = re.search(rf"^  {name} +(\S+)$", self.banner, re.MULTILINE)
        assert found, self.banner
        return found[1]

    def children(self) -> dict[str, int]:
        """Return command -> process id of the server's worker and adapter."""
        return {name: pid for name in ("worker", "adapter") for pid in self.pids(name)}

    def pids(self, command: str) -> set[int]:
        """Return the process ids of the server's workers or adapters."""
        found = processes_naming(str(self.scratch / "antiphon-"))
        return {pid for pid, line in found.items() if f" {command} " in line}

    def redis_pids(self) -> set[int]:
        """Return the process ids of the server's own Redis."""
        found = processes_naming(str(self.scratch / "antiphon-"))
        return {pid for pid, line in found.items() if "redis-server" in line}

    def addresses(self, name: str) -> list[str]:
        """All addresses of the banner by this name."""
        return re.findall(rf"^  {name} +(\S+)$", self.banner, re.MULTILINE)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, within_s: float = PATIENCE_S) -> int:
        """The exit code."""
        return self.process.wait(within_s)

    def stop(self, number: int = SIGTERM, code: int = 0) -> None:
        """Send the signal; assert this exit code, and that no process and no file is left."""
        self.process.send_signal(number)
        assert self.wait() == code
        self.assert_nothing_left()

    def assert_nothing_left(self) -> None:
        """Wait until no process, socket or file is left."""
        wait_until(lambda: not processes_naming(str(self.scratch / "antiphon-")), "its processes are gone")
        wait_until(lambda: [p.name for p in self.scratch.iterdir()] == ["stderr.log"], "its files are gone")


@contextmanager
def serving(
    scratch: Path,
    script: str = "talk",
    *arguments: str | Path,
    wait: bool = True,
    terminal: str | None = None,
) -> Iterator[Serve]:
    """A server, ready if `wait`, that belongs to `terminal` if one is given.

    Whatever is left of it at the end of the block is killed.
    """
    serve = Serve(script, scratch, *arguments, terminal=terminal)
    try:
        if wait:
            serve.wait_ready()
        yield serve
    finally:
        for pid in [serve.process.pid, *processes_naming(str(scratch / "antiphon-"))]:
            if serve.process.poll() is None or pid != serve.process.pid:
                os.kill(pid, signal.SIGKILL)
        serve.process.wait(PATIENCE_S)
        if serve.process.stdout is not None:
            serve.process.stdout.close()
