"""Goal E3 for latency: the time to the first event of an answer in one session, relative to the bare model.

Plain gRPC streams that answer the same units at once measure the transport time, which has its own column.
The goals subtract it.
"""

import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import grpc.aio

from antiphon.contract import CLIENT_OPTIONS
from antiphon.grpc import Session
from antiphon.grpc.outputs import Finalized, Text, UnitDone
from benchmarks.crowd import workload
from benchmarks.crowd.conversations import CONFIG, seconds_of_speech
from benchmarks.load.processes import OTHER_CPU, TESTED_CPU, Process, running
from benchmarks.report import Goal, Report

MOST: Final = 1.15


async def measure(is_short: bool) -> Report:
    """Return the times of one session, of plain gRPC streams and of the bare loop, in turn on one CPU."""
    found: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    cycles = 2 if is_short else 6
    with (
        running("benchmarks.crowd.worker", "--slots", "1", "--unmetered", cpu=TESTED_CPU) as worker,
        running("benchmarks.crowd.echo", cpu=TESTED_CPU) as echo,
        running("benchmarks.crowd.bare", cpu=TESTED_CPU) as loop,
    ):
        async with _talking(worker) as served, _talking(echo) as echoed:
            for number in range(cycles * workload.CYCLE):
                place = number % workload.CYCLE
                took, way = await served.say(number), await echoed.say(number)
                loop.say(str(place))
                alone = int(loop.output.readline()) / 1e6
                if number >= workload.CYCLE:
                    found[workload.speaks(place)].append((took, way, alone))
    rows: list[tuple[Any, ...]] = []
    goals = []
    for speaks, what in ((False, "listening"), (True, "speaking")):
        took, way, alone = (statistics.median(times) * 1000 for times in zip(*found[speaks], strict=True))
        ratio = (took - way) / alone
        rows.append((what, len(found[speaks]), took, way, alone, took / alone, ratio))
        goals.append(
            Goal(f"E3 first event of a {what} unit over the bare loop, without transport", ratio, MOST)
        )
    return Report(
        "first_event",
        "Time from sending a unit to its first event, one session, medians; the bare loop computes the same"
        " audio features, encoder, prefill and decode steps",
        (
            "units",
            "count",
            "service ms",
            "of which transport, ms",
            "bare loop ms",
            "ratio",
            "without transport",
        ),
        rows,
        goals,
        where=f"worker, bare streams and bare loop on CPU {TESTED_CPU} in turn, client on CPU {OTHER_CPU}",
    )


class _Talk:
    """One session that sends a unit after the end of the one before."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._outputs = aiter(session)
        self._audio = seconds_of_speech()

    async def say(self, number: int) -> float:
        """Send a unit, wait for its end, and return the seconds to its first event."""
        since, first, is_over = time.perf_counter(), 0.0, False
        unit = await self._session.send_unit(self._audio[number % len(self._audio)])
        async for output in self._outputs:  # three streams: the order is not defined
            if not first and isinstance(output, Text | UnitDone) and output.unit == unit:
                first = time.perf_counter() - since
            is_over |= isinstance(output, Finalized) and output.unit == unit
            if first and is_over:
                break
        return first


@asynccontextmanager
async def _talking(process: Process) -> AsyncIterator[_Talk]:
    async with grpc.aio.insecure_channel(process.address, options=CLIENT_OPTIONS) as channel:
        async with Session.open(channel, CONFIG, workload.name(0, 0)) as session:
            yield _Talk(session)
