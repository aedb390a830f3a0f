"""Who may have a slot: leases, signed by a dispatcher with the key that it shares with the workers."""

import hmac
import re
from typing import NamedTuple

from antiphon.semconv import DEFAULT_POOL, METADATA_LEASE, lease_mac
from inference_service.errors import LeaseInvalid, LeaseMissing
from inference_service.session.metadata import Metadata

_NUMBER = r"(0|[1-9][0-9]{0,18})"
_TOKEN = re.compile(rf"{_NUMBER}:{_NUMBER}:([0-9a-f]{{32}})")


class Lease(NamedTuple):
    """The right to one session in one slot; of two leases of a slot the one with the higher epoch counts."""

    slot: int
    epoch: int


class LeaseReader:
    """Reads the lease of a call. Without a `key` there are none, and whoever comes may have any free slot."""

    def __init__(self, key: bytes | None, worker_id: str) -> None:
        self._key = key
        self._worker_id = worker_id

    def read(self, metadata: Metadata) -> Lease | None:
        """The lease, None without a key. Raises `LeaseMissing` or `LeaseInvalid`."""
        if self._key is None:
            return None
        tokens = [value for name, value in metadata if name == METADATA_LEASE]
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
