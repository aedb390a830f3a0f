"""Two adapters and two workers that share a queue in a real Redis, with a link in front of each hop.

The party comes to the first adapter, everybody else to the second one.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import redis

from tests.conformance.support.stack import Stack
from tests.failures.cluster import PATIENCE_S, Cluster, Running, RunningWorker, until
from tests.failures.link import Link
from tests.support.redis_server import RedisServer


class SharedCluster(Cluster):
    """See the module. `redis_link` is the way of the first adapter to Redis, `beat_link` that of workers."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.redis: RedisServer
        self.redis_link: Link
        self.beat_link: Link
        self.second: Running
        self.second_stack: Stack
        self._folder = ""

    @property
    def other_url(self) -> str:
        return self.second_stack.url("")

    @property
    def processes(self) -> dict[str, Running]:
        return super().processes | {"second adapter": self.second}

    @property
    def active(self) -> dict[str, int]:
        return {"adapter": 0, "second adapter": int(self.has_far)}

    async def start(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="antiphon-")
        self.redis = RedisServer(Path(self._folder))
        await asyncio.to_thread(self.redis.start)
        address = f"127.0.0.1:{self.redis.port}"
        self.redis_link, self.beat_link, self.link = Link(address), Link(address), Link()
        for link in (self.redis_link, self.beat_link, self.link):
            await link.start()
        self.other = await self._start_worker(1)
        self.second, self.second_stack = await self._run_adapter("--dispatcher", self.redis.tcp_url)
        await self._start_adapter()
        await self.begin_far()
        await self.restart_worker(is_first=True)

    async def stop(self) -> None:
        await super().stop()
        for link in (self.redis_link, self.beat_link):
            await link.stop()
        await asyncio.to_thread(self.redis.stop)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def restart_worker(self, *, is_first: bool = False) -> None:
        if not is_first:
            await self.worker.end()
        advertise = ("--advertise", self.link.address)
        self.worker = await self._start_worker(self.slots, *advertise)
        await self._until_complete()

    async def restart_adapter(self) -> None:
        await self.adapter.end()
        await self._start_adapter()

    async def _until_complete(self) -> None:
        await super()._until_complete()
        await self.second_stack.until(ready=True, workers=2)

    async def _start_adapter(self) -> None:
        self.adapter, self.stack = await self._run_adapter("--dispatcher", _url(self.redis_link))

    async def _run_adapter(self, *arguments: str) -> tuple[Running, Stack]:
        adapter, stack = await super()._run_adapter(*arguments)
        adapter.pools = self._pools
        return adapter, stack

    async def _start_worker(self, slots: int, *arguments: str) -> RunningWorker:
        worker = await super()._start_worker(slots, "--dispatcher", _url(self.beat_link), *arguments)
        worker.pools = self._pools
        return worker

    @property
    def _pools(self) -> frozenset[int]:
        return frozenset({self.redis.port, self.redis_link.port, self.beat_link.port})

    def heal(self) -> None:
        super().heal()
        self.redis_link.heal()
        self.beat_link.heal()

    async def check_queue(self) -> None:
        """Redis knows of the workers, of their free slots and of the lease of `far`: of nothing else."""
        wanted = {"queue": 0, "ticket_exp": 0, "grant_exp": 0, "workers": 2, "leases": 1, "free": self.slots}
        found: dict[str, int] = {}

        def is_clean() -> bool:
            found.update(self._held())
            return found == wanted

        await until(is_clean, f"{wanted} in Redis, not {found}", PATIENCE_S)

    def _held(self) -> dict[str, int]:
        counts = {"queue": 0, "ticket_exp": 0, "grant_exp": 0, "workers": 0, "leases": 0, "free": 0}
        client: Any = redis.Redis(unix_socket_path=str(self.redis.socket))
        with client:
            for key in client.scan_iter("antiphon:*"):
                name = key.decode().rpartition("}:")[2]
                if name in ("queue", "ticket_exp", "grant_exp"):
                    counts[name] += client.zcard(key)
                elif name == "worker_exp":
                    counts["workers"] += client.zcard(key)
                elif name.startswith("l:"):
                    counts["leases"] += client.hlen(key)
                elif name.startswith("free:"):
                    counts["free"] += client.zcard(key)
        return counts


def _url(link: Link) -> str:
    return f"redis://{link.address}/0"
