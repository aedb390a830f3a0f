"""How a worker's memory grows with the sessions it has served: `python -m benchmarks.worker_churn`.

Starts a worker as a process, lets short sessions of one unit follow one another and prints the resident
memory of the process after every 500 of them, with what each session of that stretch cost: first with a
worker that plays a script, which shows what calls and sessions cost, then with the shipped checkpoint, which
adds the engine. `--json FILE` keeps the figures; those of the last run are in `results/growth.json`.
"""

import argparse
import asyncio
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import grpc
import numpy as np

from antiphon.grpc import Session
from antiphon.semconv import CLIENT_OPTIONS
from antiphon.v1 import inference_service_pb2 as pb

SLOTS: Final = 4
WARM_UP: Final = 500
"""Sessions that are not counted: caches and arenas fill."""

WORKERS: Final = {
    "scripted": ("tests.support.scripted_worker",),
    "antiphon-mini": ("antiphon.cli", "worker", "--log-level", "error"),
}
UNIT: Final = np.zeros(16_000, np.float32)
READY: Final = "worker ready on "
CONFIG: Final = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)


@dataclass(frozen=True)
class Point:
    """The process after so many sessions."""

    sessions: int
    rss_kib: int
    kib_per_session: float
    """Since the point before."""


@contextmanager
def running(name: str, socket: Path) -> Iterator[int]:
    """A worker that listens on `socket`; yields its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", *WORKERS[name], "--listen", f"unix:{socket}", "--slots", str(SLOTS)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith(READY):
            raise SystemExit(f"The worker did not start: {line or 'it said nothing'}")
        yield process.pid
    finally:
        process.terminate()
        process.wait(timeout=60)


def rss_kib(pid: int) -> int:
    """Resident memory of a process in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise SystemExit(f"Process {pid} is gone.")


async def session(channel: grpc.aio.Channel) -> None:
    """One session from its streams to its end, with one unit of silence."""
    async with Session.open(channel, CONFIG) as opened:
        await opened.send_unit(UNIT)
        opened.half_close()
        async for _ in opened:
            pass


async def churn(socket: Path, count: int) -> None:
    """`count` sessions, as many at once as there are slots."""
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=CLIENT_OPTIONS) as channel:

        async def one_slot() -> None:
            for _ in range(count // SLOTS):
                await session(channel)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(SLOTS):
                tasks.create_task(one_slot())


async def measure(pid: int, socket: Path, sessions: int, every: int) -> list[Point]:
    """A point after every `every` sessions."""
    await churn(socket, WARM_UP)
    points = [Point(0, rss_kib(pid), 0.0)]
    while points[-1].sessions < sessions:
        await churn(socket, every)
        rss = rss_kib(pid)
        last = points[-1]
        points.append(Point(last.sessions + every, rss, round((rss - last.rss_kib) / every, 2)))
        print(f"{points[-1].sessions:>7} sessions {rss:>9} KiB {points[-1].kib_per_session:>7} KiB each")
    return points


def main() -> None:
    """Measures and prints; see the module."""
    parser = argparse.ArgumentParser(description="How a worker's memory grows with the sessions it served.")
    parser.add_argument("--worker", choices=WORKERS, action="append", help="only this one")
    parser.add_argument("--sessions", type=int, default=3000)
    parser.add_argument("--every", type=int, default=500)
    parser.add_argument("--json", type=Path, help="where the figures go")
    arguments = parser.parse_args()
    points = {}
    for name in arguments.worker or WORKERS:
        print(name)
        with tempfile.TemporaryDirectory() as folder:
            socket = Path(folder) / "worker.sock"
            with running(name, socket) as pid:
                points[name] = asyncio.run(measure(pid, socket, arguments.sessions, arguments.every))
    if arguments.json:
        result = {
            "python": platform.python_version(),
            "grpcio": grpc.__version__,
            "workers": {name: [asdict(point) for point in found] for name, found in points.items()},
        }
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
