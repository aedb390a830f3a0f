"""The matrix: what is done to whom, and how a client in each state ends."""

import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from tests.failures.cluster import Cluster
from tests.failures.link import Link
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

Deed = Callable[..., Awaitable[None] | None]
"""Called with the scene, in a shared cluster with that before it."""

AT_ONCE_S = 1.0
"""In which a broken connection is told to clients, and a slot is clean."""
SILENCE_S = 15.0
"""In which a peer that says nothing any more is given up."""
SILENT_CLIENT_S = 40.0
"""In which a client is: 20 s between two pings, and 20 s for its answer."""
DRAIN_S = 2.0
DELAY_S, LOSS = 0.2, 0.1


@dataclass(frozen=True)
class Fault:
    """A row of the matrix: six cells.

    `strike` returns once the fault is there; `recover` is called when all have ended who do, within
    `within_s` and a margin for a busy machine; with `is_mute` nobody can be told before. `near` is how a
    neighbour at the same worker ends. With `is_outage` all that runs in a shared cluster goes on before it is
    mended; who comes to the first adapter is sent away.
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
    is_outage: bool = False

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
SHUT_DOWN = ends(UNAVAILABLE, SHUTDOWN, SHUTDOWN)


async def act(deed: Deed, *whom: object) -> None:
    done = deed(*whom)
    if done is not None:
        await done


def nothing(*_: object) -> None:
    pass


def _to(victim: str, number: signal.Signals) -> Deed:
    return lambda scene: getattr(scene.cluster, victim).signal(number)


def _to_clients(number: signal.Signals) -> Deed:
    return lambda scene: scene.party.signal(number)


async def _terminate(scene: Scene, victim: str, twice: bool) -> None:
    await getattr(scene.cluster, victim).terminate(twice=twice)


async def _drained(scene: Scene, victim: str) -> None:
    assert await getattr(scene.cluster, victim).exit_code() == 0
    await getattr(scene.cluster, f"restart_{victim}")()


def _terminated(victim: str, ends: dict[str, End], near: End) -> list[Fault]:
    return [
        Fault(
            *(what, victim, ends, near, within_s),
            partial(_terminate, victim=victim, twice=within_s == AT_ONCE_S),
            partial(_drained, victim=victim),
        )
        for what, within_s in (("SIGTERM", DRAIN_S), ("SIGTERM twice", AT_ONCE_S))
    ]


async def _clients_are_missed(scene: Scene) -> None:
    await until_active(scene.cluster.adapter, 2, SILENT_CLIENT_S + MARGIN_S)
    scene.link.heal()
    if scene.party.is_process:
        scene.party.signal(signal.SIGCONT)


async def _freeze_adapter(scene: Scene) -> None:
    adapter, worker = scene.cluster.adapter, scene.cluster.worker
    adapter.signal(signal.SIGSTOP)
    try:
        scene.go_on()
        for running in (worker, scene.cluster.other):
            await until_slots(running, attached=0, within_s=SILENCE_S + MARGIN_S)
    finally:
        adapter.signal(signal.SIGCONT)


def _link(do: Callable[[Link], None]) -> Deed:
    return lambda scene: do(scene.cluster.link)


def _clients_link(do: Callable[[Link], None]) -> Deed:
    return lambda scene: do(scene.link)


def slow(link: Link) -> None:
    link.slow(DELAY_S, LOSS)


CLIENT, HOP, LINE = "client", "client - adapter", "adapter - worker"
FAULTS = (
    Fault("kill", CLIENT, CUT_OFF, SERVED, AT_ONCE_S, _to_clients(signal.SIGKILL), nothing, True, True),
    Fault("SIGTERM", CLIENT, CUT_OFF, SERVED, AT_ONCE_S, _to_clients(signal.SIGTERM), nothing, True, True),
    Fault("cut", HOP, CUT_OFF, SERVED, AT_ONCE_S, _clients_link(Link.cut), nothing),
    Fault("slow", HOP, GOES_ON, SERVED, AT_ONCE_S, _clients_link(slow), nothing),
    *(
        Fault(
            what, victim, CUT_OFF, SERVED, SILENT_CLIENT_S, strike, _clients_are_missed, *rest, is_long=True
        )
        for what, victim, strike, *rest in (
            ("stop", CLIENT, _to_clients(signal.SIGSTOP), True, True),
            ("half open", HOP, _clients_link(Link.half_open), False, True),
            ("blackhole", HOP, _clients_link(Link.hold), False, True),
        )
    ),
    Fault(
        *("kill", "worker", WORKER_LOST, CONTINUES, AT_ONCE_S),
        *(_to("worker", signal.SIGKILL), lambda scene: scene.cluster.restart_worker()),
    ),
    Fault(
        *("stop", "worker", WORKER_LOST, CONTINUES, SILENCE_S),
        *(_to("worker", signal.SIGSTOP), _to("worker", signal.SIGCONT)),
        is_silent=True,
    ),
    *_terminated("worker", WORKER_LOST, CONTINUES),
    Fault(
        *("kill", "adapter", CUT_OFF, GONE, AT_ONCE_S),
        *(_to("adapter", signal.SIGKILL), lambda scene: scene.cluster.restart_adapter()),
    ),
    Fault(
        *("stop", "adapter", WORKER_LOST, CONTINUES, AT_ONCE_S),
        *(_freeze_adapter, lambda scene: scene.cluster.hear(scene.cluster.far)),
    ),
    *_terminated("adapter", SHUT_DOWN, SHUTDOWN),
    Fault("cut", LINE, WORKER_LOST, CONTINUES, AT_ONCE_S, _link(Link.cut), nothing),
    Fault("half open", LINE, NOT_NOTICED, CONTINUES, AT_ONCE_S, _link(Link.half_open), nothing),
    Fault(
        "blackhole",
        LINE,
        WORKER_LOST,
        CONTINUES,
        SILENCE_S,
        _link(Link.hold),
        _link(Link.heal),
        is_silent=True,
    ),
    Fault("slow", LINE, GOES_ON, SERVED, AT_ONCE_S, _link(slow), nothing),
)


async def played(cluster: Cluster, fault: Fault) -> None:
    name = fault.name.replace(" ", "_")
    ends = {**fault.ends, "near": fault.near}
    async with scene_in(cluster, name, is_process=fault.clients_are_a_process) as scene:
        await act(fault.strike, scene)
        scene.go_on()
        if not fault.is_mute:
            await scene.told(ends, fault.within_s + MARGIN_S)
        if fault.is_silent:
            await scene.until_moving(ends, fault.within_s + MARGIN_S)
        await act(fault.recover, scene)
        await scene.served(fault.ends)
        if fault.near.code is None:
            await cluster.hear(scene.near)
