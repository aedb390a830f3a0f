"""Cost for Redis of 10,000 tickets at ten adapters, and the time from a free slot to its next lease."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, Final, NamedTuple

from benchmarks.dispatch.cluster import ADAPTERS, SETTLE_S, SLOTS, WORKERS, Cluster, percentile
from benchmarks.dispatch.server import Server, redis_server
from benchmarks.load.processes import OTHER_CPU, TESTED_CPU
from benchmarks.report import Goal, Report

WAITING: Final = 10_000
ENDS_PER_S: Final = 50
"""The sessions that end per second: the rate of 800 sessions of 16 s each."""

CHAINS: Final = 8
"""The number of concurrent loops that end and begin sessions without pauses, for the throughput."""

_ROUNDS: Final = 20

_NONE: Final = float("nan")


class _Spent(NamedTuple):
    wall_s: float
    cpu_s: float


async def measure(is_short: bool) -> Report:
    """Return the CPU time of the redis-server, and the times from a free slot to its next lease."""
    seconds = 4.0 if is_short else 15.0
    rows: list[tuple[Any, ...]] = []
    with redis_server() as server:
        cluster = Cluster(server.url)
        try:
            await cluster.start()
            filling = await _spent(server, cluster.fill(WAITING))
            rows.append(_row("enqueue, in sequence at each adapter", WAITING, filling))
            await cluster.beat_for(SETTLE_S, with_workers=False)
            beats = await _spent(server, cluster.beat_for(seconds, with_workers=False))
            rows.append(_row(f"heartbeats of {WAITING} tickets", round(ADAPTERS * beats.wall_s), beats))
            share = beats.cpu_s / beats.wall_s
            await asyncio.gather(*map(cluster.worker_beat, cluster.held))
            await cluster.beat_for(2.0, with_workers=True)  # the first tickets get the slots
            await cluster.fill(WORKERS * SLOTS)
            cluster.waits_s.clear()
            paced = await _spent(server, _end_paced(cluster, seconds))
            waits = list(cluster.waits_s)
            rows.append(
                _row(
                    f"{ENDS_PER_S} sessions end and begin per second, with all heartbeats",
                    len(waits),
                    paced,
                    waits,
                )
            )
            worker_beats = await _spent(server, cluster.beat_workers(_ROUNDS))
            rows.append(
                _row(f"heartbeats of a worker with {SLOTS} sessions", _ROUNDS * WORKERS, worker_beats)
            )
            states = await _spent(server, cluster.ask_state(_ROUNDS))
            rows.append(_row(f"state of a pool with {WORKERS * SLOTS} sessions", _ROUNDS, states))
            cluster.waits_s.clear()
            before = cluster.grants
            busy = await _spent(server, _end_at_once(cluster, seconds / 2))
            rows.append(
                _row(
                    "sessions end and begin at full speed",
                    cluster.grants - before,
                    busy,
                    cluster.waits_s,
                )
            )
        finally:
            await cluster.stop()
    goals = [
        Goal(f"share of a core for the heartbeats of {WAITING} tickets", share, 0.2),
        Goal("ms from a free slot to its next lease, p99", percentile(waits, 0.99) * 1000, 20),
    ]
    return Report(
        "queue",
        f"One Redis with {WAITING} tickets of {ADAPTERS} adapters, {WORKERS} workers of {SLOTS} slots",
        ("what", "per second", "CPU-us of Redis each", "of a core", "p50 ms", "p99 ms"),
        rows,
        goals,
        where=f"redis-server on CPU {TESTED_CPU}, adapters and workers in one process on CPU {OTHER_CPU}",
    )


async def _spent(server: Server, work: Awaitable[None]) -> _Spent:
    began, cpu = time.perf_counter(), server.cpu_s()
    await work
    return _Spent(time.perf_counter() - began, server.cpu_s() - cpu)


def _row(what: str, events: int, spent: _Spent, waits: list[float] | None = None) -> tuple[Any, ...]:
    each = spent.cpu_s / events * 1e6
    times = [percentile(waits, share) * 1000 for share in (0.5, 0.99)] if waits else [_NONE, _NONE]
    return (what, events / spent.wall_s, each, spent.cpu_s / spent.wall_s, *times)


async def _end_paced(cluster: Cluster, seconds: float) -> None:
    beating = asyncio.create_task(cluster.beat_for(seconds, with_workers=True))
    due, ends = time.monotonic(), set()
    while not beating.done():
        ends.add(asyncio.create_task(cluster.end_one()))
        due += 1 / ENDS_PER_S
        await asyncio.sleep(max(0.0, due - time.monotonic()))
    await asyncio.gather(beating, *ends)


async def _end_at_once(cluster: Cluster, seconds: float) -> None:
    beating = asyncio.create_task(cluster.beat_for(seconds, with_workers=True))

    async def end() -> None:
        while not beating.done():
            await cluster.end_one()

    await asyncio.gather(beating, *(end() for _ in range(CHAINS)))
