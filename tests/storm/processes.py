"""Resources that a process holds, read from /proc."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SETTLE_S = 15.0


@dataclass(frozen=True)
class Holdings:
    """Open file descriptors and threads of a process, and its resident memory in MiB."""

    descriptors: int
    threads: int
    memory_mib: float

    @classmethod
    def of(cls, pid: int) -> "Holdings":
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        memory = int(status["VmRSS"].split()[0]) / 1024
        return cls(len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]), round(memory, 1))


def settled(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + SETTLE_S
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
