"""CPU time of the adapter per unit, compared with floors of its parts and with a relay that rewrites JSON.

The processes share one core and run in turn, each at full load while the others are idle. The result is the
median of all windows of a kind, in user and system time of all threads.
"""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.adapter import codec
from benchmarks.load.client import Client, converse, text_frame
from benchmarks.load.payload import ANSWER, APPEND
from benchmarks.load.processes import TESTED_CPU, Process, adapter, running
from benchmarks.report import Goal, Report

SESSIONS = 48
AHEAD = 2
PROCESSES = 3
"""The number of processes of each kind: processes with the same code differ by up to a tenth."""
UNBOUNDED = ("--max-cpu", "0", "--max-loop-lag-ms", "0")
"""The options of an adapter without admission control."""

_FILLED_UNITS = 8_192
"""The number of units after which journals and buffers stop growing.

New memory costs more than used memory.
"""
_WARM_UP_S = 0.5
_UNIT = text_frame(APPEND)
_OTHER = "adapter of the other source tree"
_WITHOUT_JOURNAL = "adapter without a journal"
_ORDER = (
    "adapter",
    _WITHOUT_JOURNAL,
    _OTHER,
    "floor: websockets echo",
    "floor: three gRPC streams",
    "floor: codec",
    "floors together",
    "relay that rewrites JSON",
)


class ClosedLoop:
    """Closed-loop load: each client keeps `AHEAD` units in flight and sends the next one after an answer."""

    def __init__(self) -> None:
        self.answers = 0
        self._clients: list[Client] = []
        self._is_sending = False
        self._in_flight = 0
        self._quiet = asyncio.Event()

    async def connect(self, port: int, has_sessions: bool) -> None:
        """Open `SESSIONS` sessions, or bare WebSockets without `has_sessions`."""
        for _ in range(SESSIONS):
            if has_sessions:
                self._clients.append(await converse(port, self._answered))
            else:
                self._clients.append(await Client.connect(port, self._answered))

    async def fill(self) -> None:
        """Keep the server busy until its memory for the sessions stops growing."""
        while self.answers < _FILLED_UNITS:
            await self.run(1.0)

    async def run(self, seconds: float) -> None:
        """Keep the server busy, then wait for the units in flight."""
        self._is_sending = True
        for client in self._clients:
            for _ in range(AHEAD):
                self._send(client)
        await asyncio.sleep(seconds)
        self._is_sending = False
        self._quiet.clear()
        async with asyncio.timeout(10):
            await self._quiet.wait()

    def leave(self) -> None:
        """Disconnect every client."""
        for client in self._clients:
            client.transport.abort()

    def _send(self, client: Client) -> None:
        self._in_flight += 1
        client.send(_UNIT)

    def _answered(self, client: Client, event: bytes) -> None:
        if ANSWER not in event:
            return
        self.answers += 1
        self._in_flight -= 1
        if self._is_sending:
            self._send(client)
        elif self._in_flight <= 0:
            self._quiet.set()


Window = Callable[[float], Awaitable[tuple[float, float]]]
"""A function that measures for some seconds. It returns CPU-microseconds per unit, and units per second."""


def sockets(process: Process, load: ClosedLoop) -> Window:
    """Return the window of a WebSocket server under the load of `load`."""

    async def window(seconds: float) -> tuple[float, float]:
        running = asyncio.create_task(load.run(seconds + _WARM_UP_S))
        await asyncio.sleep(_WARM_UP_S)
        cpu, answers, begin = process.cpu_s(), load.answers, time.monotonic()
        await asyncio.sleep(seconds)
        cpu, answers, seconds = process.cpu_s() - cpu, load.answers - answers, time.monotonic() - begin
        await running
        return cpu / answers * 1e6, answers / seconds

    return window


def streams(process: Process) -> Window:
    """Return the window of the plain gRPC streams, a process that generates its own load."""

    async def window(seconds: float) -> tuple[float, float]:
        process.say("go")
        await asyncio.sleep(_WARM_UP_S)
        begin, units, cpu = time.monotonic(), process.ask(), process.cpu_s()
        await asyncio.sleep(seconds)
        cpu, units, seconds = process.cpu_s() - cpu, process.ask() - units, time.monotonic() - begin
        process.say("stop")
        await asyncio.sleep(0.2)
        return cpu / units * 1e6, units / seconds

    return window


def _of(tree: Path) -> dict[str, str]:
    """Return the environment variables with which a process runs the code of another source tree."""
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": f"{tree.resolve()}:{tree.resolve()}/clients/python"}


async def _started(stack: ExitStack, against: Path | None) -> list[tuple[str, Window]]:
    """Start one process of each kind; return pairs of a kind and its window."""
    worker = stack.enter_context(running("benchmarks.load.worker"))
    behind = stack.enter_context(running("benchmarks.adapter.relay", "worker"))
    servers = {
        "adapter": adapter(worker.address, *UNBOUNDED),
        _WITHOUT_JOURNAL: adapter(worker.address, *UNBOUNDED, "--journal-s", "0"),
        "floor: websockets echo": running("benchmarks.adapter.floors", "websocket", cpu=TESTED_CPU),
        "relay that rewrites JSON": running("benchmarks.adapter.relay", str(behind.port), cpu=TESTED_CPU),
    }
    if against is not None:
        servers[_OTHER] = adapter(worker.address, *UNBOUNDED, variables=_of(against))
    windows: list[tuple[str, Window]] = []
    for name, server in servers.items():
        process, load = stack.enter_context(server), ClosedLoop()
        has_sessions = name != "floor: websockets echo"
        await load.connect(process.port, has_sessions)
        if has_sessions:
            await load.fill()
        windows.append((name, sockets(process, load)))
    bare = running("benchmarks.adapter.floors", "grpc", worker.address, str(SESSIONS), cpu=TESTED_CPU)
    return [*windows, ("floor: three gRPC streams", streams(stack.enter_context(bare)))]


async def measure(is_short: bool, against: Path | None = None) -> Report:
    """Return the table of goals A1 and A2; with the adapter of the tree `against`, if there is one."""
    rounds, seconds = (1, 2.0) if is_short else (2, 5.0)
    with ExitStack() as stack:
        windows: list[tuple[str, Window]] = []
        for _ in range(PROCESSES):
            windows += await _started(stack, against)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in windows}
        for _ in range(rounds):
            for name, window in windows:
                found[name].append(await window(seconds))
    cost = {name: statistics.median(us for us, _ in values) for name, values in found.items()}
    rate = {name: statistics.median(per_s for _, per_s in values) for name, values in found.items()}
    spread = {name: f"{min(values)[0]:.0f} to {max(values)[0]:.0f}" for name, values in found.items()}
    cost["floor: codec"] = codec.unit_us()
    cost["floors together"] = sum(us for name, us in cost.items() if name.startswith("floor: "))
    own, floor, rewriting = cost["adapter"], cost["floors together"], cost["relay that rewrites JSON"]
    rows = [
        (name, us, spread.get(name, ""), rate.get(name, ""), us / own)
        for name, us in sorted(cost.items(), key=lambda entry: _ORDER.index(entry[0]))
    ]
    return Report(
        "cost",
        "CPU per unit, one speaking unit of 1 s",
        ("process", "CPU-us per unit", "spread", "units/s", "of the adapter"),
        rows,
        (
            Goal("A1 adapter over the sum of its floors", own / floor, 1.3),
            Goal("journal: increase of the adapter's CPU time", own / cost[_WITHOUT_JOURNAL] - 1.0, 0.03),
            Goal("A2 relay over the adapter", rewriting / own, 1.5, at_most=False),
        ),
    )
