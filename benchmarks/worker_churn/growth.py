"""The resident memory of a worker during many short sessions, and during one long session."""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import numpy as np

from antiphon.audio.samples import INPUT_RATE_HZ
from antiphon.audio.wav import read_wav
from antiphon.contract import CLIENT_OPTIONS
from antiphon.grpc import Session
from antiphon.grpc.outputs import Finalized
from antiphon.v1 import inference_service_pb2 as pb

SLOTS: Final = 4
WARM_UP: Final = 500
"""Sessions before the measurement: caches and arenas grow to their size."""

RECORDING: Final = Path(__file__).parents[2] / "clients/recordings/counting.wav"
UNIT: Final = np.zeros(16_000, np.float32)
CONFIG: Final = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)


@dataclass(frozen=True)
class Point:
    """The memory of a process after `count` sessions, or units of one session."""

    count: int
    rss_kib: int
    kib_each: float
    """The growth per session or unit since the point before."""


def rss_kib(pid: int) -> int:
    """Return the resident memory of a process in KiB. Raises `SystemExit` if it has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise SystemExit(f"Process {pid} is gone.")


async def session(channel: grpc.aio.Channel) -> None:
    """Run one session with one unit of silence."""
    async with Session.open(channel, CONFIG) as opened:
        await opened.send_unit(UNIT)
        opened.half_close()
        async for _ in opened:
            pass


async def churn(socket: Path, count: int) -> None:
    """Run `count` sessions, as many at once as there are slots."""
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=CLIENT_OPTIONS) as channel:

        async def one_slot() -> None:
            for _ in range(count // SLOTS):
                await session(channel)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(SLOTS):
                tasks.create_task(one_slot())


async def measure(pid: int, socket: Path, sessions: int, every: int) -> list[Point]:
    """Return a point after every `every` sessions."""
    await churn(socket, WARM_UP)
    points = [Point(0, rss_kib(pid), 0.0)]
    while points[-1].count < sessions:
        await churn(socket, every)
        points.append(_next(points[-1], every, rss_kib(pid), "sessions"))
    return points


async def measure_units(pid: int, socket: Path, units: int, every: int) -> list[Point]:
    """Return a point after every `every` units of one session with speech as input.

    Each unit is sent when the one before is finalized. The first `every` units are a warm-up: they fill
    context and arenas.
    """
    said = read_wav(RECORDING)
    said = said[: len(said) // INPUT_RATE_HZ * INPUT_RATE_HZ].reshape(-1, INPUT_RATE_HZ)
    points: list[Point] = []
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=CLIENT_OPTIONS) as channel:
        async with Session.open(channel, CONFIG) as opened:
            outputs = aiter(opened)
            for number in range(every + units):
                await opened.send_unit(said[number % len(said)])
                while not isinstance(await anext(outputs), Finalized):
                    pass
                if number + 1 == every:
                    points.append(Point(0, rss_kib(pid), 0.0))
                elif (number + 1) % every == 0:
                    points.append(_next(points[-1], every, rss_kib(pid), "units"))
    return points


def _next(last: Point, every: int, rss: int, what: str) -> Point:
    point = Point(last.count + every, rss, round((rss - last.rss_kib) / every, 2))
    print(f"{point.count:>7} {what} {rss:>9} KiB {point.kib_each:>7} KiB each", flush=True)
    return point
