"""Slots in the form of the reference server's workers: one row for each slot."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from ws_adapter.dispatch.base import Running
from ws_adapter.observability.leases import LeasedSlot, SlotTotals
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.worker.registry import Condition, Worker

Json = dict[str, Any]


class Activity(StrEnum):
    """The activities of a slot."""

    IDLE = "idle"
    CHAT = "busy_chat"
    TRANSCRIPTION = "busy_half_duplex"
    DUPLEX = "duplex_active"
    PAUSED = "duplex_paused"
    LOADING = "loading"
    ERROR = "error"
    OFFLINE = "offline"


BUSY: Final = frozenset({Activity.CHAT, Activity.TRANSCRIPTION})
"""Activities of sessions that are not full duplex."""

_OF_KIND: Final = {
    Kind.CHAT: Activity.CHAT,
    Kind.REALTIME: Activity.CHAT,
    Kind.TRANSCRIPTION: Activity.TRANSCRIPTION,
}
"""Activities by kind. An unknown kind, of a session that did not come through this adapter, counts as full
duplex."""

_OF_CONDITION: Final = {
    Condition.LOADING: Activity.LOADING,
    Condition.UNFIT: Activity.ERROR,
    Condition.OFFLINE: Activity.OFFLINE,
}

_KINDS: Final = {
    Mode.AUDIO: Kind.AUDIO_DUPLEX,
    Mode.VIDEO: Kind.OMNI_DUPLEX,
    Mode.CHAT: Kind.CHAT,
    Mode.TRANSCRIPTION: Kind.TRANSCRIPTION,
}


_NOTHING_KNOWN: Final[Json] = {
    "worker_id": None,
    "host": None,
    "port": None,
    "gpu_id": None,
    "status": Activity.OFFLINE,
    "current_session_id": None,
    "total_requests": 0,
    "avg_inference_time_ms": 0.0,
    "last_heartbeat": None,
    "current_request_type": None,
    "task_started_at": None,
    "capabilities": [],
}


class Slots:
    """This adapter's view of the slots of all workers."""

    def __init__(self, running: Sequence[Running], held: Sequence[LeasedSlot]) -> None:
        """`running` are the sessions of all adapters, `held` the slots of this one."""
        self._running = {(one.worker_id, one.slot): one for one in running}
        self._held = {(one.lease.worker_id, one.lease.slot): one for one in held}

    def activity(self, worker_id: str, slot: int) -> Activity:
        """Return the activity of a slot of a ready worker. Only pauses of this adapter's own sessions are
        known."""
        held = self._held.get((worker_id, slot))
        if held is not None and held.is_paused:
            return Activity.PAUSED
        running = self._running.get((worker_id, slot))
        if running is None:
            return Activity.IDLE
        return _OF_KIND.get(running.kind, Activity.DUPLEX) if running.kind else Activity.DUPLEX

    def rows(
        self,
        workers: Sequence[Worker],
        totals: Mapping[tuple[str, int], SlotTotals],
        unix: float,
        *,
        names: bool,
    ) -> Iterator[Json]:
        """Yield the rows of `/workers` at the Unix time `unix`; addresses and session ids only with
        `names`."""
        for worker in workers:
            heard = _iso(unix - worker.silent_s)
            host, _, port = worker.target.rpartition(":") if names else ("", "", "")
            about = _NOTHING_KNOWN | {
                "host": host or None,
                "port": int(port) if port.isdecimal() else None,
                "last_heartbeat": heard,
            }
            if worker.info is None:
                yield about | {"status": _OF_CONDITION.get(worker.condition, Activity.OFFLINE)}
                continue
            info = worker.info
            able = sorted(_KINDS[mode] for mode in info.modes)
            for slot in range(info.slots):
                place = info.worker_id, slot
                activity = self.activity(*place)
                if activity is Activity.IDLE and slot in worker.occupied.slots:
                    activity = Activity.DUPLEX
                held, running, total = self._held.get(place), self._running.get(place), totals.get(place)
                yield about | {
                    "worker_id": f"{info.worker_id}/{slot}",
                    "status": activity,
                    "current_session_id": held.session_id if held is not None and names else None,
                    "total_requests": total.requests if total is not None else 0,
                    "avg_inference_time_ms": total.mean_ms if total is not None else 0.0,
                    "current_request_type": running.kind if running is not None else None,
                    "task_started_at": _iso(running.started_at) if running is not None else None,
                    "capabilities": able,
                }


def _iso(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat(timespec="milliseconds")
