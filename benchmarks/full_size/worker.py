"""A worker process that serves a checkpoint, and its memory."""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from benchmarks.full_size.patient_worker import PATIENCE_S

CONTEXT_LIMIT: Final = 1024
"""The context limit, too small for the longest unit of the warm-up, so that the worker skips the warm-up."""
OPTIONS: Final = ("--dtype", "bfloat16", "--kernels", "off", "--slots", "1", "--threads", "1")
_GRACE_S: Final = 60.0


class WorkerEnded(Exception):
    """The error for a worker that ended instead of serving; the message is its output."""


@dataclass(frozen=True)
class Peak:
    """The peak resident memory of a process, and its current memory, in bytes."""

    resident: int
    anonymous: int
    """Current anonymous memory."""
    mapped: int
    """Current memory mapped from files, such as weights."""


def options_on(device: str) -> tuple[str, ...]:
    """Return the options of a worker on `device`; the CPU needs no `--device`."""
    return OPTIONS if device == "cpu" else (*OPTIONS, "--device", device)


@dataclass(frozen=True)
class Worker:
    """A running worker."""

    address: str
    pid: int

    def peak(self) -> Peak:
        """Return its memory as the kernel reports it."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        sizes = {name: int(size) * 1024 for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", status, re.M)}
        return Peak(sizes["VmHWM"], sizes["RssAnon"], sizes["RssFile"])


@contextmanager
def serving(folder: Path, device: str = "cpu") -> Iterator[Worker]:
    """Run `antiphon worker` with the checkpoint in `folder` on `device`; end it by its process id.

    Raises `WorkerEnded` if it cannot serve.
    """
    options = ("--model", str(folder), "--context-limit", str(CONTEXT_LIMIT), "--listen", "127.0.0.1:0")
    command = [sys.executable, "-m", "benchmarks.full_size.patient_worker", *options, *options_on(device)]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield Worker(_address(process, log), process.pid)
        finally:
            process.terminate()
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: "subprocess.Popen[bytes]", log: IO[str]) -> str:
    end = time.monotonic() + PATIENCE_S
    while process.poll() is None and time.monotonic() < end:
        log.seek(0)
        if ready := re.search(r"ready on (\S+)$", log.read(), re.MULTILINE):
            return ready[1]
        time.sleep(0.2)
    log.seek(0)
    raise WorkerEnded(f"The worker did not become ready (exit code {process.poll()}):\n{log.read()}")
