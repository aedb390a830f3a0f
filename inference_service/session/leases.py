"""Who may have a slot: leases, signed by a dispatcher with the key that it shares with the workers."""

import hmac
import re
from dataclasses import dataclass
from typing import NamedTuple

from antiphon.semconv import DEFAULT_POOL, METADATA_LEASE, lease_mac
from inference_service.errors import LeaseInvalid, LeaseMissing
from inference_service.session.metadata import Metadata

_NUMBER = r"(0|[1-9][0-9]{0,18})"
_TOKEN = re.compile(rf"{_NUMBER}:{_NUMBER}:([0-9a-f]{{32}})?")
_HIGHEST_EPOCH = 2**52
"""Up to here whole numbers are exact to every dispatcher, and so are the ones that follow."""


class Lease(NamedTuple):
    """The right to one session in one slot; of two leases of a slot the one with the higher epoch counts."""

    slot: int
    epoch: int


@dataclass(frozen=True)
class LeaseRules:
    """Who needs a lease. With a `key` it must be signed with that.

    Where leases are not `binding` nobody needs one, and what it says is only a wish. Of binding ones,
    `unleased` slots are for those who come without.
    """

    key: bytes | None = None
    binding: bool = False
    unleased: int = 0


class LeaseReader:
    """Reads the lease of a call."""

    def __init__(self, rules: LeaseRules, worker_id: str) -> None:
        self._rules = rules
        self._worker_id = worker_id

    def read(self, metadata: Metadata) -> Lease | None:
        """The lease; None if there is none and none is needed. Raises `LeaseMissing` or `LeaseInvalid`."""
        tokens = [value for name, value in metadata if name == METADATA_LEASE]
        rules = self._rules
        if not tokens and (rules.unleased or not rules.binding):
            return None
        if not tokens:
            raise LeaseMissing(
                f"This worker takes a session only with a lease in the metadata {METADATA_LEASE}: "
                "ask its dispatcher for one."
            )
        match = _TOKEN.fullmatch(tokens[0]) if len(tokens) == 1 and isinstance(tokens[0], str) else None
        if match is not None and int(match[2]) <= _HIGHEST_EPOCH:
            return self._checked(Lease(int(match[1]), int(match[2])), match[3] or "")
        if rules.binding:
            raise LeaseInvalid(f"{METADATA_LEASE} must be given once, as <slot>:<epoch>:<mac>.")
        return None

    def _checked(self, lease: Lease, given: str) -> Lease:
        key = self._rules.key
        if key is None:
            return lease
        mac = lease_mac(key, DEFAULT_POOL, self._worker_id, lease.slot, lease.epoch)
        if not hmac.compare_digest(mac, given):
            raise LeaseInvalid(
                "The lease was not signed for this worker with its key: "
                "dispatcher and worker need the same one.",
                worker_id=self._worker_id,
            )
        return lease
