"""A private Redis on a Unix socket in a private folder, without persistence."""

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Final

from antiphon_command.output.failure import ExitCode, Failure
from antiphon_command.processes.child import Program

TETHERED: Final = "antiphon_command.tethered"

_SETTINGS: Final = (
    *("--port", "0", "--unixsocketperm", "700"),
    *("--save", "", "--appendonly", "no"),  # no persistence: workers and adapters register again
    *("--loglevel", "notice"),
)

_WRONG: Final = re.compile("error|fatal|cannot", re.IGNORECASE)
"""The pattern of output lines that are passed on; the other lines are only informational."""


def find_redis() -> str:
    """Return the path of the Redis program. Raises `Failure` if none is installed."""
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None:
        raise Failure(
            "Several adapters share their queue through Redis, and no redis-server is installed. Install one "
            "(apt-get install redis-server), or name one that runs: --dispatcher redis://HOST:6379",
            ExitCode.USAGE,
        )
    return found


def redis_url(folder: Path) -> str:
    """Return the URL for adapters and workers."""
    return f"unix://{_socket(folder)}"


def redis_program(folder: Path) -> Program:
    """Return the program of a Redis in `folder`, which no other program uses."""
    socket = _socket(folder)
    server = (find_redis(), *_SETTINGS, "--dir", str(folder), "--unixsocket", str(socket))
    return Program(
        (sys.executable, "-m", TETHERED, str(os.getpid()), *server),
        # "The server is now ready to accept connections at PATH", or "Ready to accept connections unix"
        re.compile(r".*[Rr]eady to accept connections (\S+ ?\S*)"),
        passed_on=_WRONG,
    )


def _socket(folder: Path) -> Path:
    return folder / "redis.sock"
