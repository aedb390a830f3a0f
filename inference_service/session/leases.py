"""Leases of slots, signed by a dispatcher with the key that it shares with the workers.

The epoch of a lease is a fencing token.
"""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Final, NamedTuple

from antiphon.contract import METADATA_LEASE
from antiphon_service.leases import Claims, read_token
from inference_service.errors import LeaseInvalid, LeaseMissing
from inference_service.interface.setups import Tenant
from inference_service.session.metadata import Metadata

UNCLAIMED: Final = Claims("", max_duration_s=86_400.0, idle_timeout_s=3_660.0)
"""The claims of a lease without claims, which a dispatcher of the previous release signs.

They name no tenant, and their limits are above those of all sessions of such an adapter.
"""


class Lease(NamedTuple):
    """The right to one session in one slot; of two leases of a slot, the one with the higher epoch counts."""

    slot: int
    epoch: int
    claims: Claims | None = None
    """The claims; None from a dispatcher that signs none."""


@dataclass(frozen=True)
class Terms:
    """Tenant and limits of a session, as its lease states them; its config can only shorten the limits."""

    tenant: Tenant
    max_duration_s: float | None = None
    idle_timeout_s: float | None = None

    @classmethod
    def of(cls, lease: Lease | None) -> "Terms":
        """Return the terms of a lease; a session without a lease has no limits.

        A session without a named tenant is a tenant of its own, with a random salt. Its session id cannot be
        the salt, because the caller chooses it.
        """
        if lease is None:
            return cls(_session_tenant())
        claims = lease.claims or UNCLAIMED
        salt = hashlib.sha256(b"antiphon tenant\n" + claims.tenant.encode()).digest()
        return cls(
            Tenant(salt) if claims.tenant else _session_tenant(),
            claims.max_duration_s or None,
            claims.idle_timeout_s or None,
        )


def _session_tenant() -> Tenant:
    return Tenant(secrets.token_bytes(32), is_session=True)


@dataclass(frozen=True)
class LeaseRules:
    """The rules of leases. With a `key`, every lease must be signed with it.

    Without `binding` no session needs a lease, and the slot that a lease names is only a preference. With
    `binding`, `unleased` slots are reserved for sessions without a lease.
    """

    key: bytes | None = None
    binding: bool = False
    unleased: int = 0


class LeaseReader:
    """Reader of the leases in the metadata of calls."""

    def __init__(self, rules: LeaseRules, worker_id: str) -> None:
        self._rules = rules
        self._worker_id = worker_id

    def read(self, metadata: Metadata) -> Lease | None:
        """Return the lease of a call; None if it has none and needs none. Raises `LeaseMissing` or
        `LeaseInvalid`.

        Without a key the claims are not verified: only clients on the same machine, or with a certificate
        (mTLS), can reach such a worker.
        """
        tokens = [value for name, value in metadata if name == METADATA_LEASE]
        rules = self._rules
        if not tokens and (rules.unleased or not rules.binding):
            return None
        if not tokens:
            raise LeaseMissing(
                f"This worker takes a session only with a lease in the metadata {METADATA_LEASE}: "
                "ask its dispatcher for one."
            )
        token = read_token(tokens[0]) if len(tokens) == 1 and isinstance(tokens[0], str) else None
        if token is None:
            if rules.binding:
                raise LeaseInvalid(
                    f"{METADATA_LEASE} must be given once, as <slot>:<epoch>:<claims>:<mac> or, without "
                    "claims, as <slot>:<epoch>:<mac>."
                )
            return None
        if rules.key is not None and not token.is_signed(rules.key, self._worker_id):
            raise LeaseInvalid(
                "The lease was not signed for this worker with its key: "
                "dispatcher and worker need the same key.",
                worker_id=self._worker_id,
            )
        return Lease(token.slot, token.epoch, token.claims)
