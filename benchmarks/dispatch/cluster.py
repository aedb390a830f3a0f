"""Fake adapters and workers of a pool: they make the calls of real ones to Redis, and do nothing else."""

import asyncio
import random
import time
from collections.abc import Sequence
from importlib import resources
from itertools import count
from typing import Any, Final

from antiphon_service.redis import (
    call,
    connect,
    disconnect,
    prefix,
)
from ws_adapter.process.tasks import end

ADAPTERS: Final = 10
WORKERS: Final = 50
SLOTS: Final = 16
"""The number of slots of each worker."""

SETTLE_S: Final = 3.1
"""An empty database grants no slot for 3 s."""

_PREFIX: Final = prefix("benchmark/audio")
_TICKET_MS: Final = 3000
_WORKER_MS: Final = 6000
_CAPACITY: Final = 1_000_000
_tickets: Final = count()


class Adapter:
    """A fake adapter: its tickets wait for slots, and it reports each lease to `cluster`."""

    def __init__(self, url: str, number: int, cluster: "Cluster") -> None:
        self.name = f"adapter-{number}"
        self.waiting: dict[str, None] = {}
        self._cluster = cluster
        self._client = connect(url)
        self._listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen for grants."""
        channel = self._client.pubsub()
        await channel.subscribe(f"{_PREFIX}a:{self.name}")
        self._listener = asyncio.create_task(self._listen(channel))

    async def stop(self) -> None:
        """Disconnect; its tickets expire."""
        if self._listener is not None:
            await end(self._listener)
        await disconnect(self._client)

    async def enqueue(self) -> None:
        """Add one ticket."""
        ticket = f"ticket_{next(_tickets):012x}"
        self.waiting[ticket] = None
        answer = await call(
            self._client, "enqueue", _PREFIX, ticket, self.name, _TICKET_MS, "audio_duplex", _CAPACITY, 0
        )
        if answer[0] == "granted":
            self._got(ticket, *answer[1:4])

    async def beat(self, *tickets: str) -> None:
        """Send the heartbeat of `tickets`, or of all waiting tickets."""
        named = tickets or tuple(self.waiting)
        _, places, *grants = await call(self._client, "adapter_beat", _PREFIX, self.name, _TICKET_MS, *named)
        granted = (ticket for ticket, place in zip(named, places.split(), strict=True) if place == "granted")
        for ticket, grant in zip(granted, grants, strict=True):
            self._got(ticket, *grant[:3])

    async def _listen(self, channel: Any) -> None:
        async for message in channel.listen():
            if message["type"] == "message":
                word, ticket = message["data"].split()
                if word == "granted" and ticket in self.waiting:
                    await self.beat(ticket)

    def _got(self, ticket: str, worker: str, slot: int, epoch: int) -> None:
        if ticket in self.waiting:
            del self.waiting[ticket]
            self._cluster.granted(str(worker), int(slot), int(epoch))


class Cluster:
    """`WORKERS` workers and `ADAPTERS` adapters of one queue."""

    def __init__(self, url: str) -> None:
        self.adapters = [Adapter(url, number, self) for number in range(ADAPTERS)]
        self.held: dict[str, dict[int, int]] = {f"worker-{number}": {} for number in range(WORKERS)}
        """Worker -> leased slot -> lease epoch."""
        self.waits_s: list[float] = []
        """The seconds from the report of a free slot to its lease at the next adapter."""
        self.grants = 0
        self._freed: dict[tuple[str, int], float] = {}
        self._client = connect(url)
        self._highest = 0
        self._chance = random.Random(1)

    async def start(self) -> None:
        """Load the functions and let the empty database settle."""
        source = resources.files("ws_adapter.dispatch").joinpath("functions.lua").read_text("utf-8")
        await self._client.execute_command("FUNCTION", "LOAD", source)
        await call(self._client, "stats", _PREFIX)
        for adapter in self.adapters:
            await adapter.start()

    async def stop(self) -> None:
        """Close every connection."""
        for adapter in self.adapters:
            await adapter.stop()
        await disconnect(self._client)

    async def fill(self, tickets: int) -> None:
        """Enqueue this number of tickets, spread evenly over the adapters."""

        async def enter(adapter: Adapter) -> None:
            for _ in range(tickets // ADAPTERS):
                await adapter.enqueue()

        await asyncio.gather(*map(enter, self.adapters))

    async def beat_for(self, seconds: float, *, with_workers: bool) -> None:
        """Send heartbeats of each adapter, and of each worker if `with_workers`, every second."""
        beating = [self._every_second(adapter.beat) for adapter in self.adapters]
        if with_workers:
            beating += [
                self._every_second(lambda worker=worker: self.worker_beat(worker)) for worker in self.held
            ]
        tasks = [asyncio.create_task(task) for task in beating]
        await asyncio.sleep(seconds)
        await asyncio.gather(*map(end, tasks))
        for task in tasks:
            if not task.cancelled():
                task.result()

    async def worker_beat(self, worker: str) -> None:
        """Send the heartbeat of a worker with its leases."""
        held = [number for pair in self.held[worker].items() for number in pair]
        await call(
            self._client,
            *("worker_beat", _PREFIX, worker, f"{worker}:50051", _WORKER_MS, 1, SLOTS, 0.5, self._highest),
            *held,
        )

    async def beat_workers(self, rounds: int) -> None:
        """Send the heartbeats of all workers, one after the other."""
        for _ in range(rounds):
            for worker in self.held:
                await self.worker_beat(worker)

    async def ask_state(self, times: int) -> None:
        """Request the state of the pool, as adapters do for estimates and status pages."""
        for _ in range(times):
            await call(self._client, "stats", _PREFIX, "audio_duplex")

    async def end_one(self) -> None:
        """End one random session: free its slot and add a ticket at a random adapter."""
        taken = [(worker, slot) for worker, slots in self.held.items() for slot in slots]
        worker, slot = self._chance.choice(taken)
        epoch = self.held[worker].pop(slot)
        self._freed[worker, slot] = time.perf_counter()
        await call(self._client, "slot_free", _PREFIX, worker, slot, epoch)
        await self._chance.choice(self.adapters).enqueue()

    def granted(self, worker: str, slot: int, epoch: int) -> None:
        """Record a lease that an adapter has received."""
        self.grants += 1
        self.held[worker][slot] = epoch
        self._highest = max(self._highest, epoch)
        freed = self._freed.pop((worker, slot), None)
        if freed is not None:
            self.waits_s.append(time.perf_counter() - freed)

    @staticmethod
    async def _every_second(beat: Any) -> None:
        await asyncio.sleep(random.random())
        due = time.monotonic()
        while True:
            await beat()
            due += 1.0
            await asyncio.sleep(max(0.0, due - time.monotonic()))


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of values in any order."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
