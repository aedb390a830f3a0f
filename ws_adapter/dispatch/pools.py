"""The choice of a ticket's pool."""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from ws_adapter.dispatch.base import MODE_OF, Need
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.worker.registry import WorkerInfo


class PoolOffer(NamedTuple):
    """A pool's offer for one more ticket at the end of its queue."""

    pool: str
    free_slots: int
    """Free slots that no ticket waits for."""
    wait_s: float


def choose(offers: Iterable[PoolOffer]) -> str | None:
    """Return the pool with the most free slots; if none has any, the one with the shortest wait; None
    without offers."""
    best = min(offers, key=lambda offer: (-offer.free_slots, offer.wait_s, offer.pool), default=None)
    return best.pool if best is not None else None


class Served:
    """The models and modes that pools have served so far."""

    def __init__(self) -> None:
        self._seen: dict[str, WorkerInfo] = {}

    def able(self, pools: Mapping[str, Collection[WorkerInfo]], kind: Kind, need: Need) -> list[str]:
        """Return the pools whose ready workers can serve such a session.

        If no pool ever could, return all pools whose models the caller may use: their workers answer with
        the error of the protocol. If one could before, return none: the session waits for it.
        """
        self._seen |= {pool: info for pool, infos in pools.items() for info in infos}
        able = [pool for pool, infos in pools.items() if any(serves(info, kind, need) for info in infos)]
        if able or any(serves(info, kind, need) for info in self._seen.values()):
            return able
        return [pool for pool, infos in pools.items() if any(need.allows(info.model) for info in infos)]


def serves(info: WorkerInfo, kind: Kind, need: Need) -> bool:
    """Return whether a worker can serve such a session."""
    is_model = need.model in ("", info.model) and need.allows(info.model)
    return is_model and (need.mode or MODE_OF[kind]) in info.modes
