"""The resident memory of a worker while sessions come and go."""

import asyncio
from dataclasses import dataclass
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

UNIT: Final = np.zeros(16_000, np.float32)
CONFIG: Final = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)


@dataclass(frozen=True)
class Point:
    """The process after so many sessions."""

    sessions: int
    rss_kib: int
    kib_per_session: float
    """Since the point before."""


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
