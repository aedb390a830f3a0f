"""The state of workers, slots and the queue, for status pages and gauges."""

import asyncio
import logging
from collections import deque
from pathlib import Path
from typing import Final

from opentelemetry.metrics import Meter

from antiphon_service import semconv
from antiphon_service.semconv import SlotState
from antiphon_service.telemetry.instruments import Samples, observed_gauge
from ws_adapter.dispatch.base import Dispatcher, PoolStatus, QueueView
from ws_adapter.observability.chart import ChartPoint
from ws_adapter.observability.metrics import Metrics, Recent, observe
from ws_adapter.observability.processes import Process, read_processes
from ws_adapter.peers.base import NoPeers, Peer, Peers
from ws_adapter.process.clock import Clock
from ws_adapter.process.load import Load
from ws_adapter.worker.registry import Condition, Registry

logger = logging.getLogger(__name__)

REFRESH_S: Final = 5.0
"""The longest age of the snapshot in seconds, unless a caller refreshes it."""

MOMENTS: Final = 60
"""The number of points in the history: five minutes."""


class Snapshot:
    """The state at the last refresh. Gauges read it on the thread that collects them."""

    def __init__(
        self,
        meter: Meter,
        dispatcher: Dispatcher,
        registry: Registry,
        load: Load,
        metrics: Metrics,
        clock: Clock,
        speech_detector: str,
        peers: Peers | None = None,
        processes_file: Path | None = None,
    ) -> None:
        self.status = PoolStatus(0, 0, 0, 0)
        self.view = QueueView(0, (), ())
        self.recent_units = self.recent_misses = 0
        """Figures of the last five minutes."""
        self.registry = registry
        self.load = load
        self.metrics = metrics
        self.clock = clock
        self.speech_detector = speech_detector
        self._dispatcher = dispatcher
        self._recent = Recent()
        self._peers = peers or NoPeers()
        self.peers: list[Peer] = []
        """The adapters of the cluster, including this one; none if it is alone."""
        self._processes_file = processes_file
        self.processes: list[Process] = []
        """Processes started together with this adapter; none if there is no supervisor."""
        self.history: deque[ChartPoint] = deque(maxlen=MOMENTS)
        """The last minutes, oldest first."""
        self._misses = 0
        observed_gauge(meter, semconv.WORKERS, self._workers)
        observed_gauge(meter, semconv.SLOTS, self._slots)
        observe(meter, semconv.QUEUE_LENGTH, lambda: self.status.queue_length)
        observe(meter, semconv.READY, lambda: self.is_ready)
        observe(meter, semconv.INFLIGHT_BYTES, lambda: load.inflight_bytes)
        observe(meter, semconv.CPU_CORES, lambda: load.cpu)

    @property
    def is_ready(self) -> bool:
        """Whether a new session can start."""
        return self.status.workers > 0 and bool(self.registry.ready()) and not self.load.is_draining

    async def refresh(self) -> None:
        """Read the state from the dispatcher, the other adapters and the supervisor."""
        self.peers = await self._peers.all()
        self.status = await self._dispatcher.status()
        self.view = await self._dispatcher.view()
        if self._processes_file is not None:
            self.processes = await asyncio.to_thread(read_processes, self._processes_file)
        units, misses = sum(self.metrics.units.values()), sum(self.metrics.misses.values())
        self.recent_units, self.recent_misses = self._recent.record(self.clock.now(), units, misses)

    async def keep_fresh(self) -> None:
        """Refresh until cancelled."""
        while True:
            try:
                await self.refresh()
                self._record_history()
            except Exception:
                logger.exception("the state of the pool could not be read")
            await asyncio.sleep(REFRESH_S)

    def _record_history(self) -> None:
        misses = sum(self.metrics.misses.values())
        sessions = sum(self.metrics.active.values())
        waiting = self.status.queue_length
        self.history.append(ChartPoint(self.clock.unix(), sessions, waiting, misses - self._misses))
        self._misses = misses

    def _workers(self) -> Samples:
        conditions = self.registry.conditions()
        return [((condition.value,), conditions[condition]) for condition in Condition]

    def _slots(self) -> Samples:
        states = self.metrics.leases.states()
        states[SlotState.FREE] = self.status.free_slots
        return [((state.value,), states[state]) for state in SlotState]
