"""The state of an adapter, for its operator: as JSON, and for the status page."""

from collections.abc import Sequence
from importlib.metadata import version

from msgspec import Struct

from antiphon_service.semconv import SlotState
from ws_adapter.dispatch.base import Running, Waiting
from ws_adapter.observability.chart import ChartPoint
from ws_adapter.observability.leases import LeasedSlot
from ws_adapter.observability.processes import Process
from ws_adapter.observability.snapshot import Snapshot
from ws_adapter.peers.base import Peer
from ws_adapter.worker.registry import Worker


class WorkerStatus(Struct, frozen=True):
    target: str
    state: str
    worker_id: str | None
    model: str | None
    slots: int | None
    held: int
    """Slots of the worker that sessions of all adapters hold."""
    revision: str | None = None


class LeaseStatus(Struct, frozen=True):
    """One slot that a session holds; `age_s` is the time since its grant in seconds."""

    worker_id: str
    slot: int
    epoch: int
    state: str
    mode: str
    age_s: float


class WaitStatus(Struct, frozen=True):
    """A caller that waits for a slot; times in seconds."""

    position: int
    ticket_id: str
    mode: str
    waited_s: float
    estimated_wait_s: float
    estimate_is_guess: bool


class Status(Struct, frozen=True):
    """The complete status."""

    version: str
    is_ready: bool
    is_draining: bool
    time: float
    """Unix seconds."""
    workers: list[WorkerStatus]
    slots: dict[str, int]
    leases: list[LeaseStatus]
    queue: list[WaitStatus]
    queue_capacity: int
    recent_units: int
    """Figures of the last five minutes."""
    recent_misses: int
    sessions: int
    cpu_cores: float
    loop_lag_ms: float
    inflight_bytes: int
    speech_detector: str
    """The name of the VAD: `silero` or `energy`."""
    history: list[ChartPoint] = []
    adapters: list[Peer] = []
    """The adapters of the cluster, oldest first; empty if this one is alone."""
    detached: int = 0
    """Detached sessions, which wait for their client to return."""
    processes: list[Process] = []
    """The processes that `antiphon serve` supervises on this machine; empty for an adapter started alone."""


def read_status(snapshot: Snapshot) -> Status:
    """Return the state of `snapshot` at its last refresh."""
    leases = snapshot.metrics.leases
    now, held, states = snapshot.clock.now(), leases.held(), leases.states()
    states[SlotState.FREE] = snapshot.status.free_slots
    return Status(
        version=version("antiphon"),
        is_ready=snapshot.is_ready,
        is_draining=snapshot.load.is_draining,
        time=snapshot.clock.unix(),
        workers=[_worker(worker, snapshot.view.running) for worker in snapshot.registry.workers()],
        slots={state.value: states[state] for state in SlotState},
        leases=[_lease(one, now) for one in held],
        queue=[_wait(waiting) for waiting in snapshot.view.waiting],
        queue_capacity=snapshot.view.capacity,
        recent_units=snapshot.recent_units,
        recent_misses=snapshot.recent_misses,
        sessions=sum(snapshot.metrics.active.values()),
        detached=sum(snapshot.metrics.detached.values()),
        cpu_cores=round(snapshot.load.cpu, 3),
        loop_lag_ms=round(snapshot.load.loop_lag_s * 1000, 2),
        inflight_bytes=snapshot.load.inflight_bytes,
        speech_detector=snapshot.speech_detector,
        history=list(snapshot.history),
        adapters=snapshot.peers,
        processes=snapshot.processes,
    )


def _worker(worker: Worker, running: Sequence[Running]) -> WorkerStatus:
    info = worker.info
    return WorkerStatus(
        target=worker.target,
        state=worker.condition.value,
        worker_id=info.worker_id if info is not None else None,
        model=info.model if info is not None else None,
        slots=info.slots if info is not None else None,
        held=sum(one.worker_id == info.worker_id for one in running) if info is not None else 0,
        revision=info.revision if info is not None else None,
    )


def _lease(held: LeasedSlot, now: float) -> LeaseStatus:
    lease = held.lease
    seconds = round(now - held.since, 1)
    return LeaseStatus(lease.worker_id, lease.slot, lease.epoch, held.state.value, held.kind.value, seconds)


def _wait(waiting: Waiting) -> WaitStatus:
    place = waiting.place
    return WaitStatus(
        place.position,
        place.ticket_id,
        waiting.kind.value,
        round(waiting.waited_s, 1),
        round(place.estimated_wait_s, 1),
        place.estimate_is_guess,
    )
