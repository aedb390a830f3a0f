"""What gRPC streams cost the engine's thread by holding the interpreter."""

import asyncio
import random
import statistics
import time
from typing import Any, Final

import grpc.aio

from antiphon.semconv import CLIENT_OPTIONS
from benchmarks.adapter.report import Goal, Report
from benchmarks.crowd import workload
from benchmarks.crowd.conversations import Conversation, seconds_of_speech
from benchmarks.crowd.ticking import SESSIONS
from benchmarks.load.processes import OTHER_CPU, TESTED_CPU, Process, running

STREAMS: Final = 64
MOST: Final = 0.10
"""Share of the engine's time above which it belongs into a process of its own."""

_ENDLESS: Final = 1_000_000
_SETTLES_S: Final = 3.0
_LOOK_S: Final = 0.05


async def measure(is_short: bool) -> Report:
    """Stretches with and without streams beside the ticks, in turn."""
    quiet, busy = [], []
    with running("benchmarks.crowd.ticking", cpu=OTHER_CPU) as process:
        await asyncio.sleep(2)
        for _ in range(2 if is_short else 5):
            quiet.append(await _cycle(process))
            talking = asyncio.create_task(_talk(process))
            await asyncio.sleep(_SETTLES_S)
            busy.append(await _cycle(process))
            talking.cancel()
            await asyncio.gather(talking, return_exceptions=True)
    rows: list[tuple[Any, ...]] = []
    walls = []
    for what, found in (("alone", quiet), (f"beside {STREAMS} sessions", busy)):
        wall, spent = (statistics.median(times) * 1000 for times in zip(*found, strict=True))
        walls.append(wall)
        rows.append((what, wall, spent, 1 - spent / wall))
    return Report(
        "interpreter",
        "Units of workload W in ticks without a pause, with and without gRPC streams in the same process",
        ("ticks", "ms per unit", "CPU-ms per unit", "waiting"),
        rows,
        [Goal(f"share of its time that {STREAMS} sessions cost the engine", 1 - walls[0] / walls[1], MOST)],
        where=f"engine's thread on CPU {TESTED_CPU}, streams and clients on CPU {OTHER_CPU}",
    )


async def _cycle(process: Process) -> tuple[float, float]:
    """Wall and processor seconds for each unit, while every session goes through its whole cycle once."""

    def ask() -> list[float]:
        process.say("?")
        return [float(word) for word in process.output.readline().split()]

    now = before = ask()
    while now[1] - before[1] < SESSIONS * workload.CYCLE:
        await asyncio.sleep(_LOOK_S)
        now = ask()
    wall, units, spent = (after - then for after, then in zip(now, before, strict=True))
    return wall / units, spent / units


async def _talk(process: Process) -> None:
    """Conversations with the streams, until it is cancelled."""
    audio, draw = seconds_of_speech(), random.Random(1)
    begin = time.monotonic() + 1
    async with grpc.aio.insecure_channel(process.address, options=CLIENT_OPTIONS) as channel:
        async with asyncio.TaskGroup() as talking:
            for number in range(STREAMS):
                one = Conversation(number, draw.randrange(workload.CYCLE), audio)
                talking.create_task(one.talk(channel, begin + draw.random(), _ENDLESS))
