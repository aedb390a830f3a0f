"""The tokens of leases, and what their refusal says about a worker."""

import logging
from typing import Final

from antiphon.semconv import DEFAULT_POOL, Reason, lease_mac
from ws_adapter.dispatch.base import Lease
from ws_adapter.process.errors import AttachFailed
from ws_adapter.worker.registry import Registry

logger = logging.getLogger(__name__)

_SUSPICIOUS: Final = frozenset({Reason.WORKER_LOST, Reason.ATTACH_TIMEOUT, Reason.LOADING, Reason.DRAINING})
"""After these a worker gets no session until it has answered again."""

_REFUSED_LEASE: Final = frozenset({Reason.LEASE_MISSING, Reason.LEASE_INVALID})


class Signer:
    """Makes tokens; workers without the `key` do not look at them."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key

    def __call__(self, worker_id: str, slot: int, epoch: int) -> str:
        """The token of one lease."""
        mac = "" if self._key is None else lease_mac(self._key, DEFAULT_POOL, worker_id, slot, epoch)
        return f"{slot}:{epoch}:{mac}"


def attach_failed(registry: Registry, lease: Lease, failed: AttachFailed) -> bool:
    """A worker did not take a session. Returns whether it has seen a higher epoch."""
    reason = failed.reason
    if reason in _SUSPICIOUS:
        registry.suspect(lease.target)
    elif reason is Reason.NO_FREE_SLOT:
        registry.shut(lease.target)
    elif reason is Reason.LEASE_INVALID and failed.worker_id not in ("", lease.worker_id):
        logger.info(
            "worker %s has started again as %s: a lease of %s counts no longer",
            lease.target,
            failed.worker_id,
            lease.worker_id,
        )
    elif reason in _REFUSED_LEASE:
        logger.error(
            "worker %s refuses leases (%s): give it and this adapter the same key with --worker-key-file",
            lease.target,
            reason,
        )
    return reason is Reason.STALE_LEASE
