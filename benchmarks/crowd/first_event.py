"""E3: how long one session waits for the first word of an answer, of what the bare model takes."""

import statistics
import time
from typing import Any, Final

import grpc.aio

from antiphon.grpc import Session
from antiphon.grpc.outputs import Finalized, Text, UnitDone
from antiphon.semconv import CLIENT_OPTIONS
from benchmarks.adapter.report import Goal, Report
from benchmarks.crowd import workload
from benchmarks.crowd.conversations import CONFIG, seconds_of_speech
from benchmarks.load.processes import OTHER_CPU, TESTED_CPU, Process, running

MOST: Final = 1.15


async def measure(is_short: bool) -> Report:
    """Units of one session and of the bare loop in turn on one processor; the other one is idle."""
    served: dict[bool, list[float]] = {True: [], False: []}
    bare: dict[bool, list[float]] = {True: [], False: []}
    cycles = 2 if is_short else 6
    with (
        running("benchmarks.crowd.worker", "--slots", "1", cpu=TESTED_CPU) as worker,
        running("benchmarks.crowd.bare", cpu=TESTED_CPU) as loop,
    ):
        async for unit, took in _units(worker, cycles * workload.CYCLE):
            place = (unit - 1) % workload.CYCLE
            loop.say(str(place))
            alone = int(loop.output.readline()) / 1e6
            if unit > workload.CYCLE:
                served[workload.speaks(place)].append(took)
                bare[workload.speaks(place)].append(alone)
    rows: list[tuple[Any, ...]] = []
    goals = []
    for speaks, what in ((False, "listening"), (True, "speaking")):
        ours, theirs = (statistics.median(times[speaks]) * 1000 for times in (served, bare))
        rows.append((what, len(served[speaks]), ours, theirs, ours / theirs, ours - theirs))
        goals.append(Goal(f"E3 first event of a {what} unit over the bare loop", ours / theirs, MOST))
    return Report(
        "first_event",
        "From a unit's arrival to its first event, one session, medians; the bare loop hears, prefills and"
        " decodes as many tokens",
        ("units", "count", "service ms", "bare loop ms", "ratio", "more, ms"),
        rows,
        goals,
        where=f"worker and bare loop on CPU {TESTED_CPU} in turn, client on CPU {OTHER_CPU}",
    )


async def _units(worker: Process, count: int) -> Any:
    """Each unit of one session with the seconds to its first event, once it is over."""
    audio = seconds_of_speech()
    async with grpc.aio.insecure_channel(worker.address, options=CLIENT_OPTIONS) as channel:
        async with Session.open(channel, CONFIG, workload.name(0, 0)) as session:
            outputs = aiter(session)
            for number in range(count):
                since, first = time.perf_counter(), 0.0
                unit = await session.send_unit(audio[number % len(audio)])
                async for output in outputs:
                    if not first and isinstance(output, Text | UnitDone):
                        first = time.perf_counter() - since
                    if isinstance(output, Finalized):
                        break
                yield unit, first
