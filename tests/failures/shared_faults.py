"""The rows of a shared queue: what is done to Redis, to the ways to it, and to one of two adapters."""

import asyncio
import signal

from tests.failures.faults import (
    CUT_OFF,
    GOES_ON,
    SHUT_DOWN,
    SILENCE_S,
    WORKER_LOST,
    Deed,
    Fault,
    act,
    nothing,
    slow,
)
from tests.failures.scene import CONTINUES, MARGIN_S, SERVED, UNAVAILABLE, Scene, scene_in, until_slots
from tests.failures.shared import SharedCluster
from tests.failures.visits import Visit

NEWCOMER_S = 2.0
"""After which somebody who comes while Redis is away is sent away."""


async def _kill_redis(cluster: SharedCluster, scene: Scene) -> None:
    await asyncio.to_thread(cluster.redis.stop)


async def _empty_redis(cluster: SharedCluster, scene: Scene) -> None:
    await asyncio.to_thread(cluster.redis.stop, keep_data=False)


async def _restart_redis(cluster: SharedCluster, scene: Scene) -> None:
    await asyncio.to_thread(cluster.redis.start)


def _heal(cluster: SharedCluster, scene: Scene) -> None:
    cluster.heal()


async def _freeze_adapter(cluster: SharedCluster, scene: Scene) -> None:
    cluster.adapter.signal(signal.SIGSTOP)
    try:
        scene.go_on()
        await until_slots(cluster.worker, attached=1, within_s=SILENCE_S + MARGIN_S)
    finally:
        cluster.adapter.signal(signal.SIGCONT)


def _of_redis(what: str, victim: str, strike: Deed, recover: Deed, **flags: bool) -> Fault:
    """Return a Redis fault that active sessions do not notice."""
    return Fault(what, victim, GOES_ON, SERVED, 1.0, strike, recover, **flags)


ONE = "one of two adapters"
ADAPTER_LINE, WORKER_LINE = "adapter - Redis", "worker - Redis"
SHARED_FAULTS = (
    _of_redis("kill", "Redis", _kill_redis, _restart_redis, is_outage=True),
    _of_redis("empty", "Redis", _empty_redis, _restart_redis, is_outage=True),
    _of_redis(
        *(
            "stop",
            "Redis",
            lambda cluster, _: cluster.redis.pause(),
            lambda cluster, _: cluster.redis.resume(),
        ),
        is_outage=True,
        is_long=True,
    ),
    _of_redis("cut", ADAPTER_LINE, lambda cluster, _: cluster.redis_link.cut(), nothing, is_long=True),
    _of_redis(
        *("blackhole", ADAPTER_LINE, lambda cluster, _: cluster.redis_link.hold(), _heal), is_outage=True
    ),
    _of_redis("slow", ADAPTER_LINE, lambda cluster, _: slow(cluster.redis_link), _heal, is_long=True),
    _of_redis("cut", WORKER_LINE, lambda cluster, _: cluster.beat_link.cut(), nothing),
    _of_redis("blackhole", WORKER_LINE, lambda cluster, _: cluster.beat_link.hold(), _heal, is_long=True),
    _of_redis("slow", WORKER_LINE, lambda cluster, _: slow(cluster.beat_link), _heal, is_long=True),
    Fault(
        *("kill", "worker", WORKER_LOST, CONTINUES, 1.0),
        lambda cluster, _: cluster.worker.signal(signal.SIGKILL),
        lambda cluster, _: cluster.restart_worker(),
        is_long=True,
    ),
    Fault(
        *("kill", ONE, CUT_OFF, SERVED, 1.0),
        lambda cluster, _: cluster.adapter.signal(signal.SIGKILL),
        lambda cluster, _: cluster.restart_adapter(),
    ),
    Fault("stop", ONE, WORKER_LOST, SERVED, 1.0, _freeze_adapter, nothing),
    Fault(
        *("SIGTERM", ONE, SHUT_DOWN, SERVED, 2.0),
        lambda cluster, _: cluster.adapter.terminate(),
        lambda cluster, _: cluster.restart_adapter(),
    ),
)


async def played(cluster: SharedCluster, fault: Fault) -> None:
    async with scene_in(cluster, fault.name.replace(" ", "_")) as scene:
        await act(fault.strike, cluster, scene)
        scene.go_on()
        await scene.told({**fault.ends, "near": fault.near}, fault.within_s + MARGIN_S)
        if fault.is_outage:
            await _outage(cluster, scene, fault)
        if fault.near is SERVED:
            await cluster.hear(scene.near)
        await act(fault.recover, cluster, scene)
        await scene.served(fault.ends)
        if fault.near is CONTINUES:
            await cluster.hear(scene.near)


async def _outage(cluster: SharedCluster, scene: Scene, fault: Fault) -> None:
    await cluster.hear(scene.near)
    await cluster.hear(cluster.far)
    await scene.served({state: end for state, end in fault.ends.items() if state != "queued"})
    late = Visit("late", "neighbour")
    async with asyncio.timeout(NEWCOMER_S + MARGIN_S):
        await late.run(cluster.url)
    assert (tuple(late.kinds()), late.code) == (UNAVAILABLE.kinds, UNAVAILABLE.code)
    assert scene.party.visits["queued"].code is None
