"""Cost for Redis of limits that ten adapters share, and the time that a handshake waits for Redis."""

import asyncio
import time
from typing import Any, Final

from antiphon_service.redis import connect
from benchmarks.dispatch.cluster import ADAPTERS, percentile
from benchmarks.dispatch.server import redis_server
from benchmarks.load.processes import OTHER_CPU, TESTED_CPU
from benchmarks.report import Goal, Report
from ws_adapter.peers.base import AdmissionRequest, Admitted, Peer
from ws_adapter.peers.shared import RedisPeers

HELD: Final = 10_000
"""The number of connections that stay open, each of a different client."""

NEWCOMERS_PER_S: Final = 500
MOST: Final = 1000


async def measure(is_short: bool) -> Report:
    """Return the CPU time of the redis-server per heartbeat, and per session that begins and ends."""
    seconds = 3.0 if is_short else 10.0
    waits: list[float] = []
    with redis_server() as server:
        adapters = [_peers(server.url, str(number)) for number in range(ADAPTERS)]
        for adapter in adapters:
            adapter.start()

        async def come(adapter: RedisPeers, client: str) -> Admitted:
            began = time.perf_counter()
            admitted = await adapter.admit([AdmissionRequest(client, MOST, MOST)])
            waits.append(time.perf_counter() - began)
            assert isinstance(admitted, Admitted)
            return admitted

        async def visit(number: int) -> None:
            (await come(adapters[number % ADAPTERS], f"address:{number % HELD}")).leave()

        await asyncio.gather(*(come(adapters[n % ADAPTERS], f"address:{n}") for n in range(HELD)))
        memory = server.resident_bytes()
        began, cpu = time.perf_counter(), server.cpu_s()
        await asyncio.sleep(seconds)
        beats = (server.cpu_s() - cpu) / (time.perf_counter() - began)
        waits.clear()
        began, cpu = time.perf_counter(), server.cpu_s()
        due, visits = time.monotonic(), []
        for number in range(round(NEWCOMERS_PER_S * seconds)):
            visits.append(asyncio.create_task(visit(number)))
            due += 1 / NEWCOMERS_PER_S
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await asyncio.gather(*visits)
        wall = time.perf_counter() - began
        share = (server.cpu_s() - cpu) / wall
        for adapter in adapters:
            await adapter.close()
    each = (share - beats) * wall / len(visits) * 1e6
    rows: list[tuple[Any, ...]] = [
        (
            "heartbeats of all adapters",
            float(ADAPTERS),
            beats / ADAPTERS * 1e6,
            beats,
            float("nan"),
            float("nan"),
        ),
        (
            "new sessions that begin and end",
            len(visits) / wall,
            each,
            share - beats,
            *(percentile(waits, which) * 1000 for which in (0.5, 0.99)),
        ),
    ]
    return Report(
        "limits",
        f"Limits over {ADAPTERS} adapters with {HELD} connections of {HELD} addresses; "
        f"{memory / 2**20:.0f} MiB of Redis",
        ("what", "per second", "CPU-us of Redis each", "of a core", "p50 ms", "p99 ms"),
        rows,
        [Goal("ms of a handshake spent on Redis, p99", percentile(waits, 0.99) * 1000, 20)],
        where=f"redis-server on CPU {TESTED_CPU}, adapters in one process on CPU {OTHER_CPU}",
    )


def _peers(url: str, name: str) -> RedisPeers:
    told = Peer(name, "0", "host", 1, 0.0, 1000, 0.5, True, False)
    return RedisPeers(connect(url), name, lambda: told)
