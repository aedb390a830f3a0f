"""Overhead of a shared queue for an adapter, throughput of two adapters, and conversations without Redis.

The benchmark needs only two cores. The two adapters of a pair share one core, at the same time. One pair
shares a queue, the other does not. Both pairs have the same cost of sharing a core, so the difference in
their CPU time is the overhead of the shared queue.
"""

import asyncio
import os
import signal
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from benchmarks.adapter.cost import ClosedLoop, Window, sockets
from benchmarks.adapter.overload import UNBOUNDED
from benchmarks.dispatch.pool import Registration
from benchmarks.dispatch.server import Server, redis_server
from benchmarks.load.crowd import Crowd, Tally
from benchmarks.load.processes import OTHER_CPU, TESTED_CPU, Process, adapter, running
from benchmarks.report import Goal, Report

LATE_S = 1.0
TALKERS = 100
"""The number of sessions in real time during the outage of Redis."""


async def measure(is_short: bool) -> Report:
    """Return the CPU time per unit with and without a shared queue, and the late units of a Redis outage."""
    rounds, seconds = (3, 2.0) if is_short else (5, 4.0)
    with ExitStack() as stack:
        worker = stack.enter_context(running("benchmarks.load.worker"))
        server = stack.enter_context(redis_server(OTHER_CPU))
        registration = Registration(server.url, worker.address)
        await registration.start()
        try:
            alone, apart = (stack.enter_context(adapter(worker.address, *UNBOUNDED)) for _ in range(2))
            one, other = (stack.enter_context(_sharing(server)) for _ in range(2))
            windows, loads = {}, []
            named = {"alone": alone, "apart": apart, "one": one, "other": other}
            for name, process in named.items():
                load = ClosedLoop()
                loads.append(load)
                await load.connect(process.port, has_sessions=True)
                windows[name] = sockets(process, load)
            costs: dict[str, list[float]] = {"alone": [], "sharing": [], "two apart": [], "two": []}
            for _ in range(rounds):
                costs["alone"].append((await windows["alone"](seconds))[0])
                costs["sharing"].append((await windows["one"](seconds))[0])
                costs["two apart"].append(await _both(windows["alone"], windows["apart"], seconds))
                costs["two"].append(await _both(windows["one"], windows["other"], seconds))
            for load in loads:
                load.leave()
            late = await _without_redis(one, server, seconds)
        finally:
            await registration.stop()
    middle = {name: statistics.median(values) for name, values in costs.items()}
    rows: list[tuple[Any, ...]] = [
        _row("an adapter with its own queue", costs["alone"], middle["alone"]),
        _row("an adapter that shares its queue", costs["sharing"], middle["alone"]),
        _row("two with their own queues, at the same time", costs["two apart"], middle["alone"]),
        _row("two that share a queue, at the same time", costs["two"], middle["alone"]),
    ]
    goals = [
        Goal(
            "CPU time of a unit with a shared queue over one without",
            middle["sharing"] / middle["alone"],
            1.05,
        ),
        Goal(
            "throughput of two that share a queue over two that do not, times two",
            2 * middle["two apart"] / middle["two"],
            1.8,
            at_most=False,
        ),
        *(
            Goal(f"units late or lost while Redis is {how}, of {tally.sent}", bad, 0)
            for how, tally, bad in late
        ),
    ]
    return Report(
        "sharing",
        "CPU of an adapter per unit, in alternating windows",
        ("process", "CPU-us per unit", "spread", "of one alone"),
        rows,
        goals,
        where=f"adapters on CPU {TESTED_CPU}, Redis, worker and clients on CPU {OTHER_CPU}",
    )


@contextmanager
def _sharing(server: Server) -> Iterator[Process]:
    command = ("antiphon_command", "adapter", "--port", "0", "--log-level", "error")
    with running(*command, "--dispatcher", server.url, *UNBOUNDED, cpu=TESTED_CPU) as process:
        yield process


async def _both(one: Window, other: Window, seconds: float) -> float:
    """Run both windows at the same time; return the mean CPU-microseconds per unit."""
    results = await asyncio.gather(one(seconds), other(seconds))
    return sum(cost * units for cost, units in results) / sum(units for _, units in results)


async def _without_redis(process: Process, server: Server, seconds: float) -> list[tuple[str, Tally, int]]:
    """Measure running sessions with Redis first paused, then killed.

    Return for each outage its name, the tally, and the number of late, dropped and lost units.
    """
    crowd = Crowd(process.port)
    await crowd.fill(TALKERS)
    crowd.active = TALKERS
    crowd.begin()
    await crowd.measure(seconds)
    found = []
    for how, number in (("paused", signal.SIGSTOP), ("killed", signal.SIGKILL)):
        os.kill(server.pid, number)
        tally = await crowd.measure(2 * seconds)
        slow = sum(latency > LATE_S for latency in tally.latencies)
        answered = tally.good + tally.dropped + tally.late
        # The units of the last second may still be in flight.
        lost = max(0, tally.sent - answered - TALKERS)
        found.append((how, tally, slow + tally.dropped + tally.late + lost))
    await crowd.leave()
    return found


def _row(what: str, costs: list[float], alone: float) -> tuple[Any, ...]:
    middle = statistics.median(costs)
    return (what, middle, f"{min(costs):.0f} to {max(costs):.0f}", middle / alone)
