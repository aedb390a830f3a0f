"""The cluster under test: two workers and an adapter as processes, with a link before the first worker.

The session `far` holds the second worker's only slot and talks on during the faults. All other sessions
are on the first worker.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field

from tests.conformance.support.stack import Log, Process, Stack, Worker, running, scripted_worker, wait_for
from tests.failures import descriptors
from tests.failures.link import Link
from tests.failures.visits import Visit
from tests.support.scrape import Scrape, scrape
from tests.ws_adapter.support.process import ADAPTER_OPTIONS

PATIENCE_S = 30.0
"""The longest wait for what no fault is in the way of."""

WORKER = (
    *("--modes", "audio", "--prompted", "--admin-port", "0", "--drain-timeout-s", "2"),
    *("--unit-s", "600", "--config-s", "600", "--context-limit", "1000000", "--replays"),
)
ADAPTER = (
    *("--admin-port", "0", "--drain-timeout-s", "2", "--no-worker-grace-s", "60"),
    *("--session-limit-audio-s", "0"),
)


@dataclass(kw_only=True)
class Running:
    process: Process
    exits: ExitStack
    admin_port: int
    log: Log
    before: list[str] | None = None
    """Its files when nobody is there but who is always there."""
    pools: frozenset[int] = frozenset()
    """Ports to which it keeps connections for whoever comes next."""
    pooled: set[str] = field(default_factory=set)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    async def terminate(self, *, twice: bool = False) -> None:
        """Sends it SIGTERM, and once it drains perhaps another: two that come together count as one."""
        self.signal(signal.SIGTERM)
        await until(lambda: re.search("(worker|adapter) draining", self.log.text) is not None, "drains")
        if twice:
            self.signal(signal.SIGTERM)

    @property
    def lives(self) -> bool:
        return self.process.poll() is None

    @property
    def files(self) -> list[str]:
        return descriptors.files(self.process.pid, self.pools, self.pooled)

    async def exit_code(self) -> int:
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    async def end(self) -> None:
        if self.lives:
            self.signal(signal.SIGCONT)
        await asyncio.to_thread(self.exits.close)

    async def scrape(self) -> Scrape:
        return await scrape(self.admin_port)


@dataclass(kw_only=True)
class RunningWorker(Running):
    worker: Worker

    @property
    def target(self) -> str:
        return self.worker.target

    def release(self, key: str, step: str, unit: int) -> None:
        if self.lives:
            self.worker.release(key, step, unit)

    async def until_it_holds(self, key: str, step: str, unit: int) -> None:
        await until(lambda: f"holds {key} {step} {unit}\n" in self.log.text, f"{key} in {step}")


async def until(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not in {within_s:g} s: {what}"
        await asyncio.sleep(0.02)


def _admin_port(log: str) -> int:
    (port,) = re.findall(r"administration on 127\.0\.0\.1 port (\d+)", log)
    return int(port)


class Cluster:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.is_spoiled = False
        """Whether a scene has failed, so that nothing can be relied on."""
        self.far_has_moved = False
        """Whether `far` talks with the first worker, which has taken it over."""
        self.link: Link
        self.worker: RunningWorker
        self.other: RunningWorker
        self.adapter: Running
        self.stack: Stack
        self.far: Visit
        self._far: asyncio.Task[None]

    @property
    def url(self) -> str:
        return self.stack.url("")

    @property
    def other_url(self) -> str:
        return self.url

    @property
    def processes(self) -> dict[str, Running]:
        return {"worker": self.worker, "other worker": self.other, "adapter": self.adapter}

    @property
    def active(self) -> dict[str, int]:
        """How many sessions each adapter has when nobody is there but who is always there."""
        return {"adapter": int(self.has_far)}

    async def start(self) -> None:
        """Starts all; `far` has to come before there is a second worker."""
        self.link = Link()
        await self.link.start()
        self.other = await self._start_worker(slots=1)
        await self._start_adapter()
        await self.begin_far()
        self.worker = await self._start_worker(self.slots)
        await self._until_complete()

    async def stop(self) -> None:
        self._far.cancel()
        for process in self.processes.values():
            await process.end()
        await self.link.stop()

    async def restart_worker(self) -> None:
        await self.worker.end()
        self.worker = await self._start_worker(self.slots)
        await self._until_complete()

    async def restart_adapter(self) -> None:
        await self.adapter.end()
        self._far.cancel()
        self.link.target = None
        self.link.cut()
        await self._start_adapter()
        await self.begin_far()
        await self._until_complete()

    async def _until_complete(self) -> None:
        self.link.target = self.worker.target
        await self.stack.until(ready=True, workers=2)

    async def _start_worker(self, slots: int, *arguments: str) -> RunningWorker:
        def start() -> RunningWorker:
            with ExitStack() as exits:
                worker = exits.enter_context(scripted_worker(*WORKER, "--slots", str(slots), *arguments))
                port = _admin_port(worker.log.text)
                return RunningWorker(
                    process=worker.process,
                    exits=exits.pop_all(),
                    admin_port=port,
                    log=worker.log,
                    worker=worker,
                )

        return await asyncio.to_thread(start)

    async def _start_adapter(self) -> None:
        targets = f"{self.link.address},{self.other.target}"
        self.adapter, self.stack = await self._run_adapter("--worker", targets)

    async def _run_adapter(self, *arguments: str) -> tuple[Running, Stack]:
        def start() -> tuple[Running, Stack]:
            with ExitStack() as exits:
                command = ("adapter", "--port", "0", *ADAPTER_OPTIONS, *ADAPTER, *arguments)
                process, log = exits.enter_context(running("antiphon_command", *command))
                address = wait_for(process, log, "adapter ready on ")
                stack = Stack(process, log, address, self.other.worker)
                stack.wait_until(ready=True)
                port = _admin_port(stack.log.text)
                adapter = Running(process=process, exits=exits.pop_all(), admin_port=port, log=log)
                return adapter, stack

        return await asyncio.to_thread(start)

    async def begin_far(self) -> None:
        self.far_has_moved = False
        self.far = Visit("far", "neighbour")
        self._far = asyncio.create_task(self.far.run(self.other_url))
        await self.hear(self.far)

    async def hear(self, neighbour: Visit, units: int = 2) -> None:
        start = neighbour.units
        await neighbour.until(lambda: neighbour.units >= start + units, PATIENCE_S, "answer")

    @property
    def has_far(self) -> bool:
        """Whether it talks on; it has heard nothing but what it should."""
        if self._far.done() and not self._far.cancelled():
            self._far.result()
        return self.far.code is None

    def heal(self) -> None:
        self.link.heal()

    async def renew(self) -> None:
        self.heal()
        if self.is_spoiled:
            self.is_spoiled = False
            await self.stop()
            await self.start()
        elif self.far_has_moved or not self.has_far:
            await self.restart_adapter()

    async def check_queue(self) -> None:
        """Nothing is left in a queue beyond the processes."""

    def release(self, key: str, step: str, unit: int) -> None:
        self.worker.release(key, step, unit)
        self.other.release(key, step, unit)


@asynccontextmanager
async def started(cluster: Cluster) -> AsyncIterator[Cluster]:
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
