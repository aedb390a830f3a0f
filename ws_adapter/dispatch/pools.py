"""Which pool a ticket stands in."""

from collections.abc import Iterable
from typing import NamedTuple

from antiphon.semconv import pool_name
from ws_adapter.dispatch.base import MODE_OF, Need
from ws_adapter.protocol.core.kind import Kind
from ws_adapter.worker.registry import WorkerInfo


class Offer(NamedTuple):
    """What a pool has for one more ticket, at the end of its queue."""

    pool: str
    free_slots: int
    """That nobody waits for."""
    wait_s: float


def choose(offers: Iterable[Offer]) -> str | None:
    """The pool with the most free slots, without any the one with the shortest wait; None without offers."""
    best = min(offers, key=lambda offer: (-offer.free_slots, offer.wait_s, offer.pool), default=None)
    return best.pool if best is not None else None


def pool_of(info: WorkerInfo) -> str:
    """The pool that a worker is in."""
    return pool_name(info.model, info.modes)


def serves(info: WorkerInfo, kind: Kind, need: Need) -> bool:
    """Whether a worker can serve such a session."""
    return (need.mode or MODE_OF[kind]) in info.modes and need.model in ("", info.model)
