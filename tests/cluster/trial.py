"""One of each is killed and one of each is replaced, under talkers, then whatever chance has it; and what has
to be true of it."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.cluster.nodes import Cluster, until
from tests.cluster.talkers import Conversation, Talkers
from tests.support.patience import PATIENCE_S

_LOOK_S = 0.2

_FROZEN_S = (1.0, 8.0)
"""Between these a process stands still: longer than a ticket or a worker is believed in without a beat, and
not as long as connections are."""

Act = Callable[[], Awaitable[int]]


@dataclass(frozen=True)
class Phase:
    """One fault or replacement, and its effect on the talkers."""

    name: str
    under_way: int
    lost: list[Conversation]
    allowed: int
    served_again_s: float
    """Seconds until a newcomer talked."""

    @property
    def is_good(self) -> bool:
        return len(self.lost) <= self.allowed


@dataclass
class Trial:
    cluster: Cluster
    talkers: Talkers
    phases: list[Phase] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    async def run(self, count: int, rounds: int = 0, seed: int = 0) -> None:
        """With so many talkers; after the phases come so many `rounds` of faults that `seed` draws."""
        talking = asyncio.create_task(self.talkers.talk(count))
        watching = asyncio.create_task(self._watch_leases())
        try:
            planned: list[tuple[str, Act]] = [
                ("a worker is killed", self._kill_worker),
                ("an adapter is killed", self._kill_adapter),
                ("Redis is killed, and comes back empty", self._kill_redis),
                ("a worker is replaced", self._replace_worker),
                ("an adapter is replaced", self._replace_adapter),
            ]
            for name, act in [*planned, *self._drawn(planned, rounds, random.Random(seed))]:
                await self._phase(name, act)
        finally:
            self.talkers.stop()
            watching.cancel()
            await asyncio.wait({talking, watching})
        talking.result()
        await self._check_nothing_is_left()

    def _drawn(
        self, planned: list[tuple[str, Act]], rounds: int, draw: random.Random
    ) -> list[tuple[str, Act]]:
        def freezing(kind: str) -> Act:
            return partial(self._freeze, kind, draw.uniform(*_FROZEN_S), draw)

        def one() -> tuple[str, Act]:
            return draw.choice(
                [
                    *planned,
                    ("Redis is emptied", self._empty_redis),
                    ("Redis stands still", partial(self._freeze_redis, draw.uniform(*_FROZEN_S))),
                    ("a worker stands still", freezing("worker")),
                    ("an adapter stands still", freezing("adapter")),
                ]
            )

        return [one() for _ in range(rounds)]

    async def _phase(self, name: str, act: Act) -> None:
        talkers = self.talkers
        await self._soon(lambda: talkers.live, "somebody talks")
        under_way, began = list(talkers.live), time.monotonic()
        allowed = await act()
        acted = time.monotonic()

        def newcomer() -> Conversation | None:
            return next((one for one in talkers.conversations if one.began > acted and one.units), None)

        found: Conversation = await self._soon(newcomer, f"a newcomer talks after {name}")
        await self._soon(lambda: all(one.ended for one in under_way), "those who talked have ended")
        lost = [one for one in talkers.conversations if one.lost and one.ended >= began]
        self.phases.append(Phase(name, len(under_way), lost, allowed, found.began - acted))

    async def _kill_worker(self) -> int:
        name = next(name for name in self.cluster.nodes if name.startswith("worker"))
        node = self.cluster.leave(name)
        node.end(signal.SIGKILL)
        # Those that came to it in the moment of its death are lost with it.
        await self._start_worker()
        return self.cluster.slots

    async def _kill_adapter(self) -> int:
        name = next(iter(self.cluster.adapters))
        on_it = sum(one.adapter == name for one in self.talkers.live)
        node = self.cluster.leave(name)
        node.end(signal.SIGKILL)
        await self._start_adapter()
        return on_it + 1

    async def _kill_redis(self) -> int:
        await asyncio.to_thread(self.cluster.redis.restart, keep_data=False)
        return 0

    async def _empty_redis(self) -> int:
        await asyncio.to_thread(self.cluster.redis.empty)
        return 0

    async def _freeze_redis(self, seconds: float) -> int:
        self.cluster.redis.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            self.cluster.redis.resume()
        return 0

    async def _freeze(self, kind: str, seconds: float, draw: random.Random) -> int:
        name = draw.choice([name for name in self.cluster.nodes if name.startswith(kind)])
        process = self.cluster.nodes[name].process
        process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.send_signal(signal.SIGCONT)
        return 0

    async def _replace_worker(self) -> int:
        name = next(name for name in self.cluster.nodes if name.startswith("worker"))
        await self._start_worker()
        await self._drain(name)
        return 0

    async def _replace_adapter(self) -> int:
        name = next(iter(self.cluster.adapters))
        await self._start_adapter()
        await self._drain(name)
        return 0

    async def _start_worker(self) -> None:
        node = self.cluster.nodes[self.cluster.spawn_worker()]
        await asyncio.to_thread(node.address)

    async def _start_adapter(self) -> None:
        await asyncio.to_thread(self.cluster.join, self.cluster.spawn_adapter())

    async def _drain(self, name: str) -> None:
        code = await asyncio.to_thread(self.cluster.leave(name).end)
        if code != 0:
            self.faults.append(f"{name} ended with {code}")

    async def _watch_leases(self) -> None:
        owners: dict[tuple[str, int, int], str] = {}
        while True:
            for name in list(self.cluster.adapters):
                try:
                    told = await asyncio.to_thread(self.cluster.status, name)
                except (OSError, KeyError, AssertionError, TimeoutError):
                    continue  # it was killed just now
                for lease in told["leases"]:
                    grant = (lease["worker_id"], lease["slot"], lease["epoch"])
                    if owners.setdefault(grant, name) != name:
                        self.faults.append(f"{grant} was granted to {owners[grant]} and to {name}")
            await asyncio.sleep(_LOOK_S)

    async def _check_nothing_is_left(self) -> None:
        cluster = self.cluster
        workers = sum(name.startswith("worker") for name in cluster.nodes)
        for what, condition in (
            ("all slots are free again", lambda: cluster.free_slots() == workers * cluster.slots),
            ("no lease and no ticket is left", lambda: not any(cluster.held().values())),
        ):
            try:
                await self._soon(condition, what)
            except TimeoutError:
                self.faults.append(f"not true: {what}: {cluster.free_slots()} free, held {cluster.held()}")
        for name in list(cluster.nodes):
            if "Traceback" in cluster.nodes[name].log:
                self.faults.append(f"a traceback in the log of {name}")
            await self._drain(name)

    async def _soon(self, condition: Callable[[], object], what: str) -> Any:
        return await asyncio.to_thread(until, condition, what, PATIENCE_S)
