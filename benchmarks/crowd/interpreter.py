"""Contention for the GIL between the engine's thread and gRPC streams of the same process.

Streams in another process show the cost of shared caches and memory without the GIL. The engine's thread has
its own CPU, so it waits only for the GIL while it has work. The clients share a CPU with the streams and run
at a lower priority: otherwise they would preempt the thread that holds the GIL.
"""

import asyncio
import math
import random
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc.aio

from antiphon.contract import CLIENT_OPTIONS
from benchmarks.crowd import workload
from benchmarks.crowd.conversations import Conversation, seconds_of_speech, spent
from benchmarks.crowd.ticking import SESSIONS
from benchmarks.load.processes import OTHER_CPU, TESTED_CPU, Process, running
from benchmarks.report import Goal, Report
from inference_service.media.pool import give_way

STREAMS: Final = 64
MOST: Final = 0.10
"""The largest acceptable share of the engine's time; above it the engine needs its own process."""

_ENDLESS: Final = 1_000_000
_SETTLES_S: Final = 3.0
_LOOK_S: Final = 0.05


async def measure(is_short: bool) -> Report:
    """Measure a worker in real time, then ticks without streams and with streams, in turn."""
    own, same = f"with {STREAMS} sessions in another process", f"with {STREAMS} sessions in the same process"
    found: dict[str, list[tuple[float, float]]] = {"alone": [], own: [], same: []}
    pinned = ("--engine-cpu", str(TESTED_CPU))
    with (
        running("benchmarks.crowd.ticking", *pinned, cpu=OTHER_CPU) as ticking,
        running("benchmarks.crowd.echo", cpu=OTHER_CPU) as apart,
        running("benchmarks.crowd.worker", "--slots", str(STREAMS), *pinned, cpu=OTHER_CPU) as worker,
    ):
        give_way()
        real_time = await _real_time(worker, 10 if is_short else workload.CYCLE)
        for _ in range(2 if is_short else 5):
            found["alone"].append(await _cycle(ticking))
            for name, streams in ((own, apart), (same, ticking)):
                async with _talking(streams):
                    found[name].append(await _cycle(ticking))
    rows: list[tuple[Any, ...]] = []
    took = {}
    for name, measured in found.items():
        took[name], ran = (statistics.median(parts) * 1000 for parts in zip(*measured, strict=True))
        rows.append((name, took[name], ran, 1 - ran / took[name]))
    rows.append(real_time)
    return Report(
        "interpreter",
        "Units of workload W in ticks without a pause, with and without gRPC streams in the same process, and"
        " in a worker in real time",
        ("ticks", "ms per unit", "CPU-ms per unit", "waiting"),
        rows,
        [
            Goal(
                f"share of the engine's time lost to {STREAMS} plain gRPC sessions",
                1 - took["alone"] / took[same],
                MOST,
            ),
            Goal(f"share of time that a worker's engine waits with {STREAMS} sessions", rows[-1][-1], MOST),
        ],
        where=f"engine's thread on CPU {TESTED_CPU}, streams and clients on CPU {OTHER_CPU}",
    )


async def _real_time(worker: Process, seconds: int) -> tuple[Any, ...]:
    """Return the row of a worker in real time, measured for `seconds`."""
    async with _talking(worker) as talk:
        done, before = talk.done(), spent(worker)
        await asyncio.sleep(seconds)
        units, after = talk.done() - done, spent(worker)
    ran = after.engine - before.engine
    took = ran + after.waited - before.waited
    return f"in a worker with {STREAMS} sessions", 1000 * took / units, 1000 * ran / units, 1 - ran / took


async def _cycle(process: Process) -> tuple[float, float]:
    """Return the wall time and the CPU time per unit in seconds, over one whole cycle of every session."""

    def ask() -> list[float]:
        process.say("?")
        return [float(word) for word in process.output.readline().split()]

    now = before = ask()
    while now[1] - before[1] < SESSIONS * workload.CYCLE:
        await asyncio.sleep(_LOOK_S)
        now = ask()
    wall, units, ran = (after - then for after, then in zip(now, before, strict=True))
    return wall / units, ran / units


class _Talk:
    """Endless conversations in real time."""

    def __init__(self) -> None:
        audio, self._draw = seconds_of_speech(), random.Random(1)
        self._begin = time.monotonic() + 1
        self._all = [Conversation(i, self._draw.randrange(workload.CYCLE), audio) for i in range(STREAMS)]

    def done(self) -> int:
        """Return the number of answered units."""
        return sum(not math.isnan(unit.done) for one in self._all for unit in one.units)

    async def run(self, process: Process) -> None:
        """Hold the conversations until cancelled."""
        async with grpc.aio.insecure_channel(process.address, options=CLIENT_OPTIONS) as channel:
            async with asyncio.TaskGroup() as talking:
                for one in self._all:
                    talking.create_task(one.talk(channel, self._begin + self._draw.random(), _ENDLESS))


@asynccontextmanager
async def _talking(process: Process) -> AsyncIterator[_Talk]:
    """Yield conversations with `process` that have been running for `_SETTLES_S`; end them with the block."""
    talk = _Talk()
    talking = asyncio.create_task(talk.run(process))
    try:
        await asyncio.sleep(_SETTLES_S)
        yield talk
    finally:
        talking.cancel()
        await asyncio.gather(talking, return_exceptions=True)
