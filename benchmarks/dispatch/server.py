"""A redis-server under test, pinned to a core, in a temporary folder and without persistence."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.processes import TESTED_CPU

_DEADLINE_S = 10.0


@dataclass(frozen=True)
class Server:
    """A running server."""

    pid: int
    url: str

    def cpu_s(self) -> float:
        """Return the user and system time of all its threads so far, in seconds."""
        return time.clock_gettime((~self.pid << 3) | 2)

    def resident_bytes(self) -> int:
        """Return its resident memory in bytes."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def redis_server(cpu: int = TESTED_CPU) -> Iterator[Server]:
    """Run the installed redis-server, pinned to `cpu`, for the duration of the block."""
    program = shutil.which("redis-server")
    if program is None:
        raise SystemExit("redis-server is not installed. Install it: apt-get install redis-server")
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "redis.sock"
        command = [program, "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                os.sched_setaffinity(process.pid, {cpu})
                deadline = time.monotonic() + _DEADLINE_S
                while not socket.exists():
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise SystemExit("redis-server did not start.")
                    time.sleep(0.01)
                yield Server(process.pid, f"unix://{socket}")
            finally:
                process.kill()
                process.wait(_DEADLINE_S)
