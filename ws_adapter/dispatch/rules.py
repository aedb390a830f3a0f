"""The rules of a queue: capacity, time limits, and weights of revisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ws_adapter.dispatch.revisions import ALIKE, Weights
from ws_adapter.protocol.core.kind import Kind


@dataclass(frozen=True)
class QueueRules:
    """The rules of a queue. Times in seconds; `session_limits_s` cap the estimates, 0 or no entry for no
    limit."""

    capacity: int = 1000
    """The capacity of each pool's queue."""
    update_s: float = 3.0
    no_worker_grace_s: float = 10.0
    session_limits_s: Mapping[Kind, float] = field(default_factory=dict)
    arrival_wait_s: float = 2.0
    """The seconds that a new caller waits for an unavailable shared queue."""
    outage_limit_s: float = 60.0
    """The seconds that a queued caller waits for an unavailable shared queue."""
    revisions: Mapping[str, Weights] = field(default_factory=dict)
    """Weights of the revisions of models."""

    def weights(self, pool: str) -> Weights:
        """Return the weights in a pool with a name of `antiphon_service.pools.pool_name`."""
        return self.revisions.get(pool.rpartition("/")[0], ALIKE)
