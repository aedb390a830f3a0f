"""An `antiphon serve` process under test: its start, its start-up time and its memory."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HEALTH: Final = re.compile(r"Health\s+(?:\x1b\[\d+m)*http://([\w.:]+)/readyz")
_LAST: Final = "Ctrl-C to drain"
_END_S: Final = 60.0
QUIET: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NO_COLOR": "1",
}
"""Environment variables with which both engines compute on one thread."""


@dataclass(frozen=True)
class Served:
    """A running `antiphon serve`."""

    process: "subprocess.Popen[str]"
    address: str
    """`host:port` of the adapter."""
    start_s: float

    def memory_mb(self) -> float:
        """Return the proportional set size of all its processes, in MiB."""
        return sum(map(_proportional_kb, (self.process.pid, *_below(self.process.pid)))) / 1024


@contextmanager
def served(engine: str, folder: Path, slots: int, limit: int, dtype: str) -> Iterator[Served]:
    """Run `antiphon serve`; end its processes with the block. Raises `SystemExit` if it does not start."""
    options = {
        "engine": engine,
        "model": str(folder),
        "slots": str(slots),
        "context-limit": str(limit),
        "dtype": dtype,
        "threads": "1",
        "compile": "off",
        "port": "0",
    }
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "antiphon_command", "serve", "--no-page", *words],
        stdout=subprocess.PIPE,
        env=os.environ | QUIET,
        text=True,
        start_new_session=True,
    )
    try:
        yield Served(process, _announced(process), time.monotonic() - began)
    finally:
        below = _below(process.pid) if process.poll() is None else []
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            for left in (process.pid, *below):
                _kill(left)
            process.wait()


def _announced(process: "subprocess.Popen[str]") -> str:
    """Return the address in the banner, after the banner's last line."""
    assert process.stdout is not None
    address = ""
    for line in process.stdout:
        if found := _HEALTH.search(line):
            address = found[1]
        if _LAST in line:
            return address
    raise SystemExit("antiphon serve ended before it was ready. Its output is above.")


def _below(process: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found + [far for near in found for far in _below(near)]


def _proportional_kb(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
