"""Dispatchers of every back end with workers behind them, for tests that apply to all of them.

A back end is a `Build`: what it makes is a `Backend`, and `tests/ws_adapter/dispatch/test_contract.py` asks
nothing else of it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from antiphon_service.pools import STABLE, pool_name
from antiphon_service.redis import DIRECTORY, call, connect, disconnect, prefix
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.redis_users import RedisUsers
from tests.ws_adapter.support.stage import until
from ws_adapter.dispatch.base import ANYTHING, Dispatcher, Lease, Need, Priority, QueuePlace, Share
from ws_adapter.dispatch.functions import SOURCE
from ws_adapter.dispatch.inprocess import InProcessDispatcher
from ws_adapter.dispatch.redis import RedisDispatcher
from ws_adapter.dispatch.rules import QueueRules
from ws_adapter.process.clock import Clock, LoopClock
from ws_adapter.process.tasks import end
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.worker.registry import Registry, WorkerInfo

MODEL = "antiphon-mini"


class ListedRegistry(Registry):
    """Workers that a test adds and removes; `slots` are those of the initial workers."""

    def __init__(self, **slots: int) -> None:
        super().__init__(())
        self.infos: dict[str, WorkerInfo] = {}
        self.suspected: list[str] = []
        self.set(**slots)

    def ready(self) -> list[tuple[str, WorkerInfo]]:
        return [(f"{name}:1", info) for name, info in self.infos.items()]

    def set(self, **slots: int) -> None:
        """Make these workers the only ones."""
        self.infos = {}
        for name, count in slots.items():
            self.put(name, count)
        self.changed()

    def put(
        self,
        name: str,
        slots: int,
        model: str = MODEL,
        modes: Iterable[Mode] = Mode,
        revision: str = STABLE,
    ) -> None:
        info = WorkerInfo(name, model, slots, frozenset(), frozenset(modes), revision=revision)
        self.infos[name] = info
        self.changed()

    def name(self, targets: Any) -> None:
        """Ignore `targets`: the test lists the workers."""

    def suspect(self, target: str) -> None:
        """Record the suspicion; listed workers stay healthy."""
        self.suspected.append(target)


class InProcessBackend:
    """One adapter. A slot is clean when the block of its caller is left."""

    def __init__(
        self, rules: QueueRules, registry: ListedRegistry | None = None, clock: Clock | None = None
    ) -> None:
        self.registry = registry or ListedRegistry()
        self.dispatcher = InProcessDispatcher(self.registry, clock or LoopClock(), rules)

    async def open(
        self, name: str, slots: int, model: str = MODEL, modes: Iterable[Mode] = Mode, revision: str = STABLE
    ) -> None:
        """Add a worker."""
        self.registry.put(name, slots, model, modes, revision)

    async def drain(self, name: str) -> None:
        """Let a worker refuse new sessions."""
        del self.registry.infos[name]
        self.registry.changed()

    shut = drain

    async def attach(self, lease: Lease) -> None:
        """Begin a session at its worker, which does not check the lease."""

    async def clean(self, lease: Lease) -> None:
        """End the session: the block of its caller was left."""


@asynccontextmanager
async def in_process(**rules: Any) -> AsyncIterator[InProcessBackend]:
    """The back end of one adapter."""
    backend = InProcessBackend(QueueRules(**rules))
    yield backend
    status = await backend.dispatcher.status()
    assert (status.queue_length, len((await backend.dispatcher.view()).running)) == (0, 0)
    await backend.dispatcher.close()


@dataclass
class FakeWorker:
    """A worker without a model that reports to Redis as a real one does."""

    name: str
    slots: int
    pool: str
    client: Any
    accepting: int = 1
    highest: int = 0
    held: dict[int, int] = field(default_factory=dict)
    refused: list[tuple[int, int]] = field(default_factory=list)
    """Leases that came too late."""
    revision: str = STABLE
    speaking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A lock that keeps the worker's messages to Redis in order."""

    async def beat(self) -> None:
        """Report the state; free revoked slots that no session has."""
        async with self.speaking:
            await call(self.client, "announce", DIRECTORY, self.pool, 6000)
            pairs = [number for lease in self.held.items() for number in lease]
            settings = (self.name, f"{self.name}:1", 6000, self.accepting, self.slots, 0, self.highest)
            named: list[str] = [] if self.revision == STABLE else [self.revision]
            function = "worker_beat_as" if named else "worker_beat"
            flat = await call(self.client, function, prefix(self.pool), *named, *settings, *pairs)
            for slot, epoch in zip(flat[::2], flat[1::2], strict=True):
                self.highest = max(self.highest, epoch)
                if self.held.get(slot) is None:
                    await call(self.client, "slot_free", prefix(self.pool), self.name, slot, epoch)

    def attach(self, slot: int, epoch: int) -> bool:
        """Take a session unless its slot is in use or its lease is old; return whether it was taken."""
        if epoch <= self.highest or slot in self.held:
            self.refused.append((slot, epoch))
            return False
        self.held[slot], self.highest = epoch, max(epoch, self.highest)
        return True

    async def free(self, slot: int) -> None:
        """End the session and free its slot."""
        async with self.speaking:
            epoch = self.held.pop(slot)
            await call(self.client, "slot_free", prefix(self.pool), self.name, slot, epoch)


def age(server: RedisServer, pool: str = pool_name("scripted", ["audio"])) -> None:
    """Make the database an old one for the pool, so that it does not wait for callers that might return."""
    key, now = prefix(pool), round(time.time() * 1000)
    if server.command("SET", f"{key}boot", str(now - 60_000), "NX") == b"+OK":
        server.command("HSET", f"{key}clock", "real", str(now), "time", str(now))
        server.command("SET", f"{key}seq", str(now * 1000))


class MortalDispatcher(RedisDispatcher):
    """A dispatcher that a test can make fail."""

    def die(self) -> None:
        """End as by SIGKILL, without releasing anything."""
        assert self._task is not None
        self._task.cancel()

    async def stop_wake_ups(self) -> None:
        """Stop receiving wake-ups."""
        await self._wake_ups.stop()


class RedisBackend:
    """An adapter of a shared queue, or several."""

    def __init__(self, server: RedisServer, rules: QueueRules, users: RedisUsers | None = None) -> None:
        self.server = server
        self.rules = rules
        self.registry = ListedRegistry()
        self.client = connect(server.url)
        self.adapter_url = users.adapter if users is not None else server.url
        self.worker_client = connect(users.worker if users is not None else server.url)
        self.workers: dict[str, FakeWorker] = {}
        self.dispatchers: list[MortalDispatcher] = []
        self._beating = asyncio.create_task(self._beat())

    def another(self, url: str | None = None) -> MortalDispatcher:
        """Add an adapter."""
        dispatcher = MortalDispatcher(
            connect(url or self.adapter_url), self.registry, LoopClock(), self.rules
        )
        self.registry.changed = self._changed
        self.dispatchers.append(dispatcher)
        dispatcher.start()
        return dispatcher

    @property
    def dispatcher(self) -> MortalDispatcher:
        return self.dispatchers[0] if self.dispatchers else self.another()

    def _changed(self) -> None:
        for dispatcher in self.dispatchers:
            dispatcher.workers_changed()

    async def open(
        self, name: str, slots: int, model: str = MODEL, modes: Iterable[Mode] = Mode, revision: str = STABLE
    ) -> None:
        pool = pool_name(model, modes)
        age(self.server, pool)
        worker = self.workers[name] = FakeWorker(name, slots, pool, self.worker_client, revision=revision)
        await worker.beat()
        self.registry.put(name, slots, model, modes, revision)

    async def drain(self, name: str) -> None:
        self.workers[name].accepting = 0
        await self.workers[name].beat()

    async def shut(self, name: str) -> None:
        worker = self.workers.pop(name)
        await call(self.worker_client, "worker_leave", prefix(worker.pool), name)
        del self.registry.infos[name]
        self.registry.changed()

    async def attach(self, lease: Lease) -> None:
        if lease.worker_id in self.workers:
            assert self.workers[lease.worker_id].attach(lease.slot, lease.epoch)
            await self.workers[lease.worker_id].beat()

    async def clean(self, lease: Lease) -> None:
        worker = self.workers.get(lease.worker_id)
        if worker is not None and worker.held.get(lease.slot) == lease.epoch:
            await worker.free(lease.slot)

    async def _beat(self) -> None:
        while True:
            for worker in list(self.workers.values()):
                with suppress(Exception):
                    await worker.beat()
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        await end(self._beating)
        for dispatcher in self.dispatchers:
            await dispatcher.close()


Backend: TypeAlias = InProcessBackend | RedisBackend
Build = Callable[..., AbstractAsyncContextManager[Backend]]
"""Called with the `QueueRules` as keywords; on leaving, everything has to be gone."""


def on_redis(server: RedisServer, users: RedisUsers | None = None) -> Build:
    """The back end of several adapters. With `users`, adapters and workers have no more rights than these."""

    @asynccontextmanager
    async def build(**rules: Any) -> AsyncIterator[RedisBackend]:
        backend = RedisBackend(server, QueueRules(**rules), users)
        loader = connect(backend.adapter_url)
        await loader.function_load(SOURCE, replace=True)
        await disconnect(loader)
        try:
            yield backend
        finally:
            await backend.close()
            for name in list(backend.workers):
                await backend.shut(name)
            left = {key.partition("}:")[2] for key in await backend.client.keys("antiphon:*")}
            await disconnect(backend.client)
            await disconnect(backend.worker_client)
        kept = {"clock", "boot", "seq", "epoch", "exp", "turns"}
        assert {name for name in left if not name.startswith("mean:")} <= kept

    return build


@dataclass(eq=False)
class Caller:
    """A caller that requests a slot and keeps it until told to leave."""

    backend: Backend
    task: "asyncio.Task[None]"
    places: list[QueuePlace] = field(default_factory=list)
    lease: Lease | None = None
    error: BaseException | None = None
    leaving: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def ticket_id(self) -> str:
        return self.places[0].ticket_id

    @property
    def worker_id(self) -> str:
        """The worker whose slot the caller has."""
        assert self.lease is not None
        return self.lease.worker_id

    async def leave(self) -> None:
        """End the session and free its slot."""
        self.leaving.set()
        await asyncio.wait([self.task], timeout=PATIENCE_S)
        assert self.task.done()
        if self.lease is not None:
            await self.backend.clean(self.lease)

    async def vanish(self) -> None:
        """Cancel the caller at any point, also during a command to Redis, where the package may lose the
        cancellation (`asyncio.wait_for` of Python 3.11)."""
        async with asyncio.timeout(PATIENCE_S):
            await end(self.task)
        if self.lease is not None:
            await self.backend.clean(self.lease)


class Callers:
    """All callers of a test."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.all: list[Caller] = []
        self.granted: list[Caller] = []

    async def occupy(self) -> Caller:
        """Add a worker, whose only slot this caller gets at once."""
        await self.backend.open("a", 1)
        return await self.served()

    async def served(self, kind: Kind = Kind.CHAT, **options: Any) -> Caller:
        """Request a slot, and return when the caller has it."""
        caller = await self.enter(kind, **options)
        await until(lambda: caller.lease)
        return caller

    async def enter(self, kind: Kind = Kind.CHAT, **options: Any) -> Caller:
        """Request a slot, and return when the caller is queued, served or refused."""
        caller = self.start(kind, **options)
        await until(lambda: caller.places or caller.lease or caller.error)
        return caller

    def start(
        self,
        kind: Kind = Kind.CHAT,
        *,
        max_wait: float = 0.0,
        need: Need = ANYTHING,
        label: str = "",
        again: str | None = None,
        share: Share | None = None,
        priority: Priority = Priority.NORMAL,
        revision: str = "",
        dispatcher: Dispatcher | None = None,
    ) -> Caller:
        """Begin to request a slot."""

        async def hold() -> None:
            try:
                async with (dispatcher or self.backend.dispatcher).acquire(
                    kind,
                    max_wait,
                    need=need,
                    label=label,
                    again=again,
                    share=share,
                    priority=priority,
                    revision=revision,
                ) as ticket:
                    async for update in ticket.updates():
                        if isinstance(update, Lease):
                            await self.backend.attach(update)
                            caller.lease = update
                            self.granted.append(caller)
                        else:
                            assert update.ticket_id == ticket.id
                            caller.places.append(update)
                    await caller.leaving.wait()
            except Exception as error:
                caller.error = error

        caller = Caller(self.backend, asyncio.create_task(hold()))
        self.all.append(caller)
        return caller

    async def end(self) -> None:
        for caller in self.all:
            await caller.vanish()


async def until_told(condition: Callable[[], Any]) -> None:
    """Wait until the coroutine function returns true, like `until`."""
    deadline = time.monotonic() + PATIENCE_S
    while not await condition():
        assert time.monotonic() < deadline, "it did not come"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def stage(build: Build, **rules: Any) -> AsyncIterator[Callers]:
    """Yield a back end with its callers, which all leave at the end."""
    async with build(**{"update_s": 0.05, **rules}) as backend:
        callers = Callers(backend)
        try:
            yield callers
        finally:
            await callers.end()
