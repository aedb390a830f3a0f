"""The matrix: what is done to whom, and how a client in each state ends."""

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.failures.cluster import Cluster
from tests.failures.scene import (
    BUSY,
    CONTINUES,
    GONE,
    MARGIN_S,
    OVER,
    SERVED,
    SHUTDOWN,
    UNAVAILABLE,
    End,
    Scene,
    scene_in,
    until_active,
    until_slots,
)

Deed = Callable[[Scene], Awaitable[None]]

AT_ONCE_S = 1.0
"""In which a broken connection is told to clients, and a slot is clean."""
SILENCE_S = 15.0
"""In which a peer that says nothing any more is given up."""
SILENT_CLIENT_S = 40.0
"""In which a client is: 20 s between two pings, and 20 s for its answer."""
DRAIN_S = 2.0
"""Drain time of the cluster's processes."""
DELAY_S, LOSS = 0.2, 0.1
"""Of a slow hop, in each direction."""


@dataclass(frozen=True)
class Fault:
    """A row of the matrix: six cells.

    `strike` returns once the fault is there; `recover` is called when all have ended who do, within
    `within_s` and a margin for a busy machine; with `is_mute` nobody can be told before. `near` is how a
    neighbour at the same worker ends.
    """

    what: str
    victim: str
    ends: dict[str, End]
    near: End
    within_s: float
    strike: Deed
    recover: Deed
    clients_are_a_process: bool = False
    is_mute: bool = False
    is_long: bool = False
    """Only `make failures` waits for it."""
    is_silent: bool = False
    """Whether it takes the adapter a while to notice; it is mended only then."""

    @property
    def name(self) -> str:
        return f"{self.what} {self.victim}"


def ends(queued: End, attaching: End, running: End) -> dict[str, End]:
    """By state: those of a session that runs are alike, and one that closes has been told."""
    states = dict.fromkeys(("prefill", "generate", "finalize"), running)
    return {"queued": queued, "attaching": attaching, **states, "closing": OVER}


CUT_OFF = ends(GONE, GONE, GONE)
WORKER_LOST = ends(SERVED, SERVED, CONTINUES)
NOT_NOTICED = ends(BUSY, BUSY, CONTINUES)
GOES_ON = ends(SERVED, SERVED, SERVED)


async def _nothing(scene: Scene) -> None:
    pass


def _to_worker(number: signal.Signals) -> Deed:
    async def strike(scene: Scene) -> None:
        scene.cluster.worker.signal(number)

    return strike


async def _kill_adapter(scene: Scene) -> None:
    scene.cluster.adapter.signal(signal.SIGKILL)


def _terminate_worker(*, twice: bool = False) -> Deed:
    return lambda scene: scene.cluster.worker.terminate(twice=twice)


def _terminate_adapter(*, twice: bool = False) -> Deed:
    return lambda scene: scene.cluster.adapter.terminate(twice=twice)


def _to_clients(number: signal.Signals) -> Deed:
    async def strike(scene: Scene) -> None:
        scene.party.signal(number)

    return strike


async def _cut_clients(scene: Scene) -> None:
    scene.link.cut()


async def _slow_clients(scene: Scene) -> None:
    scene.link.slow(DELAY_S, LOSS)


async def _half_open_clients(scene: Scene) -> None:
    scene.link.half_open()


async def _hold_clients(scene: Scene) -> None:
    scene.link.hold()


async def _clients_are_missed(scene: Scene) -> None:
    await until_active(scene.cluster.adapter, 2, SILENT_CLIENT_S + MARGIN_S)
    scene.link.heal()
    if scene.party.is_process:
        scene.party.signal(signal.SIGCONT)


async def _cut_worker(scene: Scene) -> None:
    scene.cluster.link.cut()


async def _half_open_worker(scene: Scene) -> None:
    scene.cluster.link.half_open()


async def _hold_worker(scene: Scene) -> None:
    scene.cluster.link.hold()


async def _slow_worker(scene: Scene) -> None:
    scene.cluster.link.slow(DELAY_S, LOSS)


async def _heal(scene: Scene) -> None:
    scene.cluster.link.heal()


async def _restart_worker(scene: Scene) -> None:
    await scene.cluster.restart_worker()


async def _drained_worker(scene: Scene) -> None:
    assert await scene.cluster.worker.exit_code() == 0
    await scene.cluster.restart_worker()


async def _restart_adapter(scene: Scene) -> None:
    await scene.cluster.restart_adapter()


async def _drained_adapter(scene: Scene) -> None:
    assert await scene.cluster.adapter.exit_code() == 0
    await scene.cluster.restart_adapter()


async def _freeze_adapter(scene: Scene) -> None:
    """Until the workers have given up all its sessions."""
    adapter, worker = scene.cluster.adapter, scene.cluster.worker
    adapter.signal(signal.SIGSTOP)
    try:
        scene.go_on()
        for running in (worker, scene.cluster.other):
            await until_slots(running, attached=0, within_s=SILENCE_S + MARGIN_S)
    finally:
        adapter.signal(signal.SIGCONT)


async def _thaw_worker(scene: Scene) -> None:
    scene.cluster.worker.signal(signal.SIGCONT)


async def _far_goes_on(scene: Scene) -> None:
    await scene.cluster.hear(scene.cluster.far)


FAULTS = (
    Fault("kill", "client", CUT_OFF, SERVED, AT_ONCE_S, _to_clients(signal.SIGKILL), _nothing, True, True),
    Fault("SIGTERM", "client", CUT_OFF, SERVED, AT_ONCE_S, _to_clients(signal.SIGTERM), _nothing, True, True),
    Fault("cut", "client - adapter", CUT_OFF, SERVED, AT_ONCE_S, _cut_clients, _nothing),
    Fault("slow", "client - adapter", GOES_ON, SERVED, AT_ONCE_S, _slow_clients, _nothing),
    *(
        Fault(
            what, victim, CUT_OFF, SERVED, SILENT_CLIENT_S, strike, _clients_are_missed, *rest, is_long=True
        )
        for what, victim, strike, *rest in (
            ("stop", "client", _to_clients(signal.SIGSTOP), True, True),
            ("half open", "client - adapter", _half_open_clients, False, True),
            ("blackhole", "client - adapter", _hold_clients, False, True),
        )
    ),
    Fault("kill", "worker", WORKER_LOST, CONTINUES, AT_ONCE_S, _to_worker(signal.SIGKILL), _restart_worker),
    Fault(
        "stop",
        "worker",
        WORKER_LOST,
        CONTINUES,
        SILENCE_S,
        _to_worker(signal.SIGSTOP),
        _thaw_worker,
        is_silent=True,
    ),
    Fault(
        "SIGTERM",
        "worker",
        WORKER_LOST,
        CONTINUES,
        DRAIN_S,
        _terminate_worker(),
        _drained_worker,
    ),
    Fault(
        "SIGTERM twice",
        "worker",
        WORKER_LOST,
        CONTINUES,
        AT_ONCE_S,
        _terminate_worker(twice=True),
        _drained_worker,
    ),
    Fault("kill", "adapter", CUT_OFF, GONE, AT_ONCE_S, _kill_adapter, _restart_adapter),
    Fault("stop", "adapter", WORKER_LOST, CONTINUES, AT_ONCE_S, _freeze_adapter, _far_goes_on),
    Fault(
        "SIGTERM",
        "adapter",
        ends(UNAVAILABLE, SHUTDOWN, SHUTDOWN),
        SHUTDOWN,
        DRAIN_S,
        _terminate_adapter(),
        _drained_adapter,
    ),
    Fault(
        "SIGTERM twice",
        "adapter",
        ends(UNAVAILABLE, SHUTDOWN, SHUTDOWN),
        SHUTDOWN,
        AT_ONCE_S,
        _terminate_adapter(twice=True),
        _drained_adapter,
    ),
    Fault("cut", "adapter - worker", WORKER_LOST, CONTINUES, AT_ONCE_S, _cut_worker, _nothing),
    Fault("half open", "adapter - worker", NOT_NOTICED, CONTINUES, AT_ONCE_S, _half_open_worker, _nothing),
    Fault(
        "blackhole",
        "adapter - worker",
        WORKER_LOST,
        CONTINUES,
        SILENCE_S,
        _hold_worker,
        _heal,
        is_silent=True,
    ),
    Fault("slow", "adapter - worker", GOES_ON, SERVED, AT_ONCE_S, _slow_worker, _nothing),
)


async def played(cluster: Cluster, fault: Fault) -> None:
    """Plays one row in a cluster, and holds it against what it says."""
    name = fault.name.replace(" ", "_")
    async with scene_in(cluster, name, is_process=fault.clients_are_a_process) as scene:
        await fault.strike(scene)
        scene.go_on()
        if not fault.is_mute:
            await scene.told({**fault.ends, "near": fault.near}, fault.within_s + MARGIN_S)
        if fault.is_silent:
            await scene.until_moving({**fault.ends, "near": fault.near}, fault.within_s + MARGIN_S)
        await fault.recover(scene)
        await scene.served(fault.ends)
        if fault.near.code is None:
            await cluster.hear(scene.near)
