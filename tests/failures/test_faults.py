"""Each fault of the matrix, with a client in each state of a session and two who talk on."""

import pytest

from tests.failures import faults, shared_faults
from tests.failures.cluster import Cluster
from tests.failures.shared import SharedCluster

SHORT = (
    "cut client - adapter",
    "kill worker",
    "SIGTERM worker",
    "kill adapter",
    "SIGTERM adapter",
    "cut adapter - worker",
)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("fault", [it for it in faults.FAULTS if not it.is_long], ids=lambda it: it.name)
@pytest.mark.sample(*SHORT)
async def test_fault(cluster: Cluster, fault: faults.Fault) -> None:
    await faults.played(cluster, fault)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    "fault", [it for it in shared_faults.SHARED_FAULTS if not it.is_long], ids=lambda it: it.name
)
@pytest.mark.sample("cut worker - Redis")
async def test_shared_fault(shared_cluster: SharedCluster, fault: faults.Fault) -> None:
    """The same with a queue that two adapters share; nothing is left in Redis either."""
    await shared_faults.played(shared_cluster, fault)
