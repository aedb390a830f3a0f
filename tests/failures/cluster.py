"""What is put to the test: two workers and an adapter as processes, with a link in front of the first worker.

The second worker's only slot is `far`'s, who talks on while things happen to the others; so all others are
sessions of the first worker.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

from tests.conformance.support.stack import Process, Stack, Worker, running_stack, scripted_worker
from tests.failures.link import Link
from tests.failures.visits import Visit
from tests.support.scrape import Scrape, scrape

PATIENCE_S = 30.0
"""The longest wait for what no fault is in the way of."""

WORKER = (
    *("--modes", "audio", "--prompted", "--admin-port", "0", "--drain-timeout-s", "2"),
    *("--unit-s", "600", "--config-s", "600", "--context-limit", "1000000"),
)
ADAPTER = (
    *("--admin-port", "0", "--drain-timeout-s", "2", "--no-worker-grace-s", "60"),
    *("--session-limit-audio-s", "0"),
)


@dataclass
class Running:
    """A process of ours, and how to end it."""

    process: Process
    exits: ExitStack
    admin_port: int
    before: int | None = None
    """Its files when nobody is there but who is always there."""

    def signal(self, *numbers: signal.Signals) -> None:
        """Sends it signals."""
        for number in numbers:
            os.kill(self.process.pid, number)

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    @property
    def files(self) -> int:
        """Its open sockets, pipes and files; what threads of a pool wake each other with is none."""
        folder = f"/proc/{self.process.pid}/fd"
        found = 0
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                found += not os.readlink(f"{folder}/{name}").startswith("anon_inode:")
        return found

    async def exit_code(self) -> int:
        """Waits for its end."""
        return await asyncio.to_thread(self.process.wait, PATIENCE_S)

    async def end(self) -> None:
        """Ends it if it has not ended."""
        if self.lives:
            self.signal(signal.SIGCONT)
        await asyncio.to_thread(self.exits.close)

    async def scrape(self) -> Scrape:
        """Its metrics."""
        return await scrape(self.admin_port)


@dataclass
class RunningWorker(Running):
    """A worker; `worker` speaks to it."""

    worker: Worker | None = None

    def release(self, key: str, step: str, unit: int) -> None:
        """Lets a session go on."""
        assert self.worker is not None
        if self.lives:
            self.worker.release(key, step, unit)

    async def until_it_holds(self, key: str, step: str, unit: int) -> None:
        """Waits until the session with this key waits there."""
        assert self.worker is not None
        log = self.worker.log
        await until(lambda: f"holds {key} {step} {unit}\n" in log.text, f"{key} in {step}")


async def until(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """Waits for what has no event."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not in {within_s:g} s: {what}"
        await asyncio.sleep(0.02)


def _admin_port(log: str) -> int:
    (port,) = re.findall(r"administration on 127\.0\.0\.1 port (\d+)", log)
    return int(port)


class Cluster:
    """The processes, each started again when it is needed and gone."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        """Of the first worker."""
        self.is_spoiled = False
        """Whether a scene has failed, so that nothing can be relied on."""
        self.link = Link()
        self.worker: RunningWorker
        self.other: RunningWorker
        self.adapter: Running
        self.stack: Stack
        self.far: Visit
        self._far: asyncio.Task[None]

    @property
    def url(self) -> str:
        """Of the adapter."""
        return self.stack.url("")

    @property
    def processes(self) -> dict[str, Running]:
        """Those of a cluster, by what they are called."""
        return {"worker": self.worker, "other worker": self.other, "adapter": self.adapter}

    async def start(self) -> None:
        """Starts all."""
        await self.link.start()
        self.worker, self.other = await asyncio.gather(
            self._start_worker(self.slots), self._start_worker(slots=1)
        )
        await self._start_adapter()

    async def stop(self) -> None:
        """Ends all."""
        self._far.cancel()
        for running in (self.adapter, self.worker, self.other):
            await running.end()
        await self.link.stop()

    async def restart_worker(self) -> None:
        """Another first worker, at the same address for the adapter."""
        await self.worker.end()
        self.worker = await self._start_worker(self.slots)
        self.link.target = self.worker.worker.target if self.worker.worker else None
        await self.stack.until(ready=True, workers=2)

    async def restart_adapter(self) -> None:
        """Another adapter, at another address for its clients."""
        await self.adapter.end()
        self._far.cancel()
        await self._start_adapter()

    async def _start_worker(self, slots: int) -> RunningWorker:
        def start() -> RunningWorker:
            with ExitStack() as exits:
                worker = exits.enter_context(scripted_worker(*WORKER, "--slots", str(slots)))
                port = _admin_port(worker.log.text)
                return RunningWorker(worker.process, exits.pop_all(), port, worker=worker)

        return await asyncio.to_thread(start)

    async def _start_adapter(self) -> None:
        """And with it `far`, who has to come first."""
        assert self.other.worker is not None
        assert self.worker.worker is not None
        known = (Worker(self.worker.process, self.worker.worker.log, self.link.address), self.other.worker)
        self.link.target = None
        self.link.cut()

        def start() -> None:
            with ExitStack() as exits:
                self.stack = exits.enter_context(running_stack(*known, options=ADAPTER, wait=False))
                self.stack.wait_until(ready=True, workers=1)
                port = _admin_port(self.stack.log.text)
                self.adapter = Running(self.stack.process, exits.pop_all(), port)

        await asyncio.to_thread(start)
        await self.begin_far()
        self.link.target = self.worker.worker.target
        await self.stack.until(ready=True, workers=2)

    async def begin_far(self) -> None:
        """It comes, and talks."""
        self.far = Visit("far", "neighbour")
        self._far = asyncio.create_task(self.far.run(self.url))
        await self.hear(self.far)

    async def hear(self, neighbour: Visit, units: int = 2) -> None:
        """Waits until a neighbour has been answered so often again."""
        start = neighbour.units
        await neighbour.until(lambda: neighbour.units >= start + units, PATIENCE_S, "answer")

    @property
    def has_far(self) -> bool:
        """Whether it talks on; it has heard nothing but what it should."""
        if self._far.done() and not self._far.cancelled():
            self._far.result()
        return self.far.code is None

    async def renew(self) -> None:
        """Everything is where it was at first."""
        self.link.heal()
        if self.is_spoiled:
            self.is_spoiled = False
            await self.stop()
            self.link = Link()
            await self.start()
        elif not self.has_far:
            await self.restart_adapter()

    def release(self, key: str, step: str, unit: int) -> None:
        """Lets a session go on, wherever it is."""
        self.worker.release(key, step, unit)
        self.other.release(key, step, unit)


@asynccontextmanager
async def running_cluster(slots: int) -> AsyncIterator[Cluster]:
    """A cluster, ended on leaving the block."""
    cluster = Cluster(slots)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
