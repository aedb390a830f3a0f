"""Python processes that are forked from one that has already done their imports.

The imports of a worker take seconds of a processor, and tests start a hundred workers. What is forked has a
process id, an environment and files of its own and ends as any process does. How a process starts from
nothing is proven by the tests of the commands.
"""

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

from tests.support.forks.request import Request
from tests.support.patience import PATIENCE_S, START_S

_ADDRESS: Final = "TESTS_FORKS"
"""Environment variable: the address of a server of forks that several processes share."""


class Process:
    """The part of `subprocess.Popen` that tests use, with the same names."""

    def __init__(self, link: int, stdin: IO[bytes]) -> None:
        self.stdin = stdin
        self.returncode: int | None = None
        self._link = link
        self._lock = threading.Lock()
        weakref.finalize(self, os.close, link)
        self.pid = self._next_number()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._link], [], [], 0)[0]:
                self.returncode = self._next_number()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.poll() is None:
            select.select([self._link], [], [], timeout)  # readable too where the code was read meanwhile
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its code is on its way
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _next_number(self) -> int:
        """Return the next number from the server of forks; raise `TimeoutError` if none comes."""
        if not select.select([self._link], [], [], START_S)[0]:
            raise TimeoutError("the server of forks does not answer")
        return int(os.read(self._link, 32))


def start(
    module: str,
    *arguments: str,
    output: IO[Any],
    errors: IO[Any] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Process:
    """`python -m MODULE ARGUMENTS...`, whose input is a pipe; `errors` go to `output` if left out."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read, write = os.pipe()
    request = Request(
        module, arguments, dict(os.environ if environment is None else environment), str(folder or Path.cwd())
    )
    with theirs:
        files = [read, output.fileno(), (errors or output).fileno(), theirs.fileno()]
        request.send(_server(), files)
    os.close(read)
    return Process(ours.detach(), os.fdopen(write, "wb"))


def share() -> None:
    """One server for this process and for those that it starts, which find it in their environment."""
    os.environ[_ADDRESS] = _serve()


@cache
def _server() -> socket.socket:
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked.connect(os.environ.get(_ADDRESS) or _serve())
    return asked


def _serve() -> str:
    folder = tempfile.TemporaryDirectory(prefix="forks-")
    address = str(Path(folder.name) / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forks.server", str(listener.fileno())],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
    atexit.register(_end, server, folder)
    return address


def _end(server: "subprocess.Popen[bytes]", folder: "tempfile.TemporaryDirectory[str]") -> None:
    assert server.stdin is not None
    server.stdin.close()
    try:
        server.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    folder.cleanup()
