"""The rows of a shared queue: what is done to Redis, to the ways to it, and to one of two adapters."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.failures.faults import CUT_OFF, DELAY_S, GOES_ON, LOSS, SILENCE_S, WORKER_LOST, ends
from tests.failures.scene import (
    CONTINUES,
    MARGIN_S,
    SERVED,
    SHUTDOWN,
    UNAVAILABLE,
    End,
    Scene,
    scene_in,
    until_slots,
)
from tests.failures.shared import SharedCluster
from tests.failures.visits import Visit

Deed = Callable[[SharedCluster, Scene], Awaitable[None]]

NEWCOMER_S = 2.0
"""After which somebody who comes while Redis is away is sent away."""


@dataclass(frozen=True)
class SharedFault:
    """A row, as `tests.failures.faults.Fault`.

    With `is_outage` all that runs goes on before it is mended; who comes to the first adapter is sent away.
    """

    what: str
    victim: str
    ends: dict[str, End]
    near: End
    within_s: float
    strike: Deed
    recover: Deed
    is_outage: bool = False
    is_long: bool = False

    @property
    def name(self) -> str:
        return f"{self.what} {self.victim}"


async def _nothing(cluster: SharedCluster, scene: Scene) -> None:
    pass


async def _kill_redis(cluster: SharedCluster, scene: Scene) -> None:
    await asyncio.to_thread(cluster.redis.stop)


async def _restart_redis(cluster: SharedCluster, scene: Scene) -> None:
    await asyncio.to_thread(cluster.redis.start)


async def _empty_redis(cluster: SharedCluster, scene: Scene) -> None:
    await asyncio.to_thread(lambda: cluster.redis.stop(keep_data=False))


async def _pause_redis(cluster: SharedCluster, scene: Scene) -> None:
    cluster.redis.pause()


async def _resume_redis(cluster: SharedCluster, scene: Scene) -> None:
    cluster.redis.resume()


async def _cut_adapter(cluster: SharedCluster, scene: Scene) -> None:
    cluster.redis_link.cut()


async def _hold_adapter(cluster: SharedCluster, scene: Scene) -> None:
    cluster.redis_link.hold()


async def _slow_adapter(cluster: SharedCluster, scene: Scene) -> None:
    cluster.redis_link.slow(DELAY_S, LOSS)


async def _cut_workers(cluster: SharedCluster, scene: Scene) -> None:
    cluster.beat_link.cut()


async def _hold_workers(cluster: SharedCluster, scene: Scene) -> None:
    cluster.beat_link.hold()


async def _slow_workers(cluster: SharedCluster, scene: Scene) -> None:
    cluster.beat_link.slow(DELAY_S, LOSS)


async def _heal(cluster: SharedCluster, scene: Scene) -> None:
    cluster.heal()


async def _kill_adapter(cluster: SharedCluster, scene: Scene) -> None:
    cluster.adapter.signal(signal.SIGKILL)


async def _terminate_adapter(cluster: SharedCluster, scene: Scene) -> None:
    await cluster.adapter.terminate()


async def _kill_worker(cluster: SharedCluster, scene: Scene) -> None:
    cluster.worker.signal(signal.SIGKILL)


async def _freeze_adapter(cluster: SharedCluster, scene: Scene) -> None:
    """Until the worker has given up its sessions."""
    cluster.adapter.signal(signal.SIGSTOP)
    try:
        scene.go_on()
        await until_slots(cluster.worker, attached=1, within_s=SILENCE_S + MARGIN_S)
    finally:
        cluster.adapter.signal(signal.SIGCONT)


async def _restart_adapter(cluster: SharedCluster, scene: Scene) -> None:
    await cluster.restart_adapter()


async def _restart_worker(cluster: SharedCluster, scene: Scene) -> None:
    await cluster.restart_worker()


SHARED_FAULTS = (
    SharedFault("kill", "Redis", GOES_ON, SERVED, 1.0, _kill_redis, _restart_redis, is_outage=True),
    SharedFault("empty", "Redis", GOES_ON, SERVED, 1.0, _empty_redis, _restart_redis, is_outage=True),
    SharedFault(
        "stop", "Redis", GOES_ON, SERVED, 1.0, _pause_redis, _resume_redis, is_outage=True, is_long=True
    ),
    SharedFault("cut", "adapter - Redis", GOES_ON, SERVED, 1.0, _cut_adapter, _nothing, is_long=True),
    SharedFault("blackhole", "adapter - Redis", GOES_ON, SERVED, 1.0, _hold_adapter, _heal, is_outage=True),
    SharedFault("slow", "adapter - Redis", GOES_ON, SERVED, 1.0, _slow_adapter, _heal, is_long=True),
    SharedFault("cut", "worker - Redis", GOES_ON, SERVED, 1.0, _cut_workers, _nothing),
    SharedFault("blackhole", "worker - Redis", GOES_ON, SERVED, 1.0, _hold_workers, _heal, is_long=True),
    SharedFault("slow", "worker - Redis", GOES_ON, SERVED, 1.0, _slow_workers, _heal, is_long=True),
    SharedFault("kill", "worker", WORKER_LOST, CONTINUES, 1.0, _kill_worker, _restart_worker, is_long=True),
    SharedFault("kill", "one of two adapters", CUT_OFF, SERVED, 1.0, _kill_adapter, _restart_adapter),
    SharedFault("stop", "one of two adapters", WORKER_LOST, SERVED, 1.0, _freeze_adapter, _nothing),
    SharedFault(
        "SIGTERM",
        "one of two adapters",
        ends(UNAVAILABLE, SHUTDOWN, SHUTDOWN),
        SERVED,
        2.0,
        _terminate_adapter,
        _restart_adapter,
    ),
)


async def played(cluster: SharedCluster, fault: SharedFault) -> None:
    async with scene_in(cluster, fault.name.replace(" ", "_")) as scene:
        await fault.strike(cluster, scene)
        scene.go_on()
        await scene.told({**fault.ends, "near": fault.near}, fault.within_s + MARGIN_S)
        if fault.is_outage:
            await _outage(cluster, scene, fault)
        if fault.near is SERVED:
            await cluster.hear(scene.near)
        await fault.recover(cluster, scene)
        await scene.served(fault.ends)
        if fault.near is CONTINUES:
            await cluster.hear(scene.near)


async def _outage(cluster: SharedCluster, scene: Scene, fault: SharedFault) -> None:
    await cluster.hear(scene.near)
    await cluster.hear(cluster.far)
    await scene.served({state: end for state, end in fault.ends.items() if state != "queued"})
    late = Visit("late", "neighbour")
    async with asyncio.timeout(NEWCOMER_S + MARGIN_S):
        await late.run(cluster.url)
    assert (tuple(late.kinds()), late.code) == (UNAVAILABLE.kinds, UNAVAILABLE.code)
    assert scene.party.visits["queued"].code is None
