"""The tokens of leases, and the handling of sessions that a worker did not take."""

import hashlib
import hmac
import logging
import secrets
from typing import Final

from antiphon.contract import Reason
from antiphon_service.leases import Claims, write_token
from ws_adapter.dispatch.base import Lease, LeaseTerms
from ws_adapter.process.errors import AttachFailed
from ws_adapter.worker.registry import Registry

logger = logging.getLogger(__name__)

_SUSPICIOUS: Final = frozenset(
    {
        Reason.WORKER_LOST,
        Reason.ATTACH_TIMEOUT,
        Reason.LOADING,
        Reason.DRAINING,
        Reason.ENGINE_FATAL,
        Reason.UNIT_TIMEOUT,
    }
)
"""Reasons after which a worker gets no session until it has answered again."""

_REFUSED_LEASE: Final = frozenset({Reason.LEASE_MISSING, Reason.LEASE_INVALID})


_NAME_DIGITS: Final = 32


class Signer:
    """Signer of lease tokens; workers without the `key` do not check them."""

    def __init__(self, key: bytes | None, registry: Registry) -> None:
        self._key = key
        self._registry = registry

    def __call__(self, target: str, worker_id: str, slot: int, epoch: int, terms: LeaseTerms) -> str:
        """Return the token of one lease, without claims for a worker of the previous release."""
        claims = None
        if self._registry.reads_claims(target):
            tenant = self.pseudonym(terms.tenant) if terms.tenant else secrets.token_hex(_NAME_DIGITS // 2)
            claims = Claims(tenant, terms.max_duration_s, terms.idle_timeout_s)
        return write_token(self._key, worker_id, slot, epoch, claims)

    def pseudonym(self, caller: str) -> str:
        """Return a pseudonym of a caller, the same at every adapter with this key.

        Without the key an attacker could find an address by hashing all addresses. An adapter without a key
        serves only workers of its own machine.
        """
        text = f"antiphon tenant\n{caller}".encode()
        return hmac.digest(self._key or b"", text, hashlib.sha256).hex()[:_NAME_DIGITS]


def attach_failed(registry: Registry, lease: Lease, failed: AttachFailed) -> bool:
    """Handle a worker that did not take a session; return whether the worker has seen a higher epoch."""
    reason = failed.reason
    if reason in _SUSPICIOUS:
        registry.suspect(lease.target)
    elif reason is Reason.NO_FREE_SLOT:
        registry.shut(lease.target)
    elif reason is Reason.LEASE_INVALID and failed.worker_id not in ("", lease.worker_id):
        logger.info(
            "lease rejected: worker %s has restarted as %s, and the lease was for %s",
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
