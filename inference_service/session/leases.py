"""Who may have a slot: leases, signed by a dispatcher with the key that it shares with the workers."""

import hmac
import re
from typing import NamedTuple

from antiphon.semconv import DEFAULT_POOL, METADATA_LEASE, lease_mac
from inference_service.errors import LeaseInvalid, LeaseMissing
from inference_service.session.metadata import Metadata

_NUMBER = r"(0|[1-9][0-9]{0,18})"
_UNSIGNED = re.compile(rf"{_NUMBER}:{_NUMBER}:")
_TOKEN = re.compile(rf"{_UNSIGNED.pattern}([0-9a-f]{{32}})")


class Lease(NamedTuple):
    """The right to one session in one slot; of two leases of a slot the one with the higher epoch counts."""

    slot: int
    epoch: int


class LeaseReader:
    """Reads the lease of a call. Without a `key` nobody needs one, and what it says is only a wish."""

    def __init__(self, key: bytes | None, worker_id: str) -> None:
        self.is_binding = key is not None
        """Whether a session may have the slot of its lease only."""
        self._key = key
        self._worker_id = worker_id

    def read(self, metadata: Metadata) -> Lease | None:
        """The lease; without a key None where it cannot be read. Raises `LeaseMissing` or `LeaseInvalid`."""
        tokens = [value for name, value in metadata if name == METADATA_LEASE]
        if self._key is None:
            match = _UNSIGNED.match(tokens[0]) if tokens and isinstance(tokens[0], str) else None
            return Lease(int(match[1]), int(match[2])) if match is not None else None
        if not tokens:
            raise LeaseMissing(
                f"This worker takes a session only with a lease in the metadata {METADATA_LEASE}: "
                "ask its dispatcher for one."
            )
        match = _TOKEN.fullmatch(tokens[0]) if len(tokens) == 1 and isinstance(tokens[0], str) else None
        if match is None:
            raise LeaseInvalid(f"{METADATA_LEASE} must be given once, as <slot>:<epoch>:<mac>.")
        lease = Lease(int(match[1]), int(match[2]))
        mac = lease_mac(self._key, DEFAULT_POOL, self._worker_id, lease.slot, lease.epoch)
        if not hmac.compare_digest(mac, match[3]):
            raise LeaseInvalid(
                "The lease was not signed for this worker with its key: "
                "dispatcher and worker need the same one."
            )
        return lease
