"""The faults that take longest to be noticed, and more of the same: `make failures` plays them."""

import pytest

from tests.failures import faults, shared_faults
from tests.failures.cluster import Cluster
from tests.failures.shared import SharedCluster


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("fault", [it for it in faults.FAULTS if it.is_long], ids=lambda it: it.name)
async def test_long_fault(cluster: Cluster, fault: faults.Fault) -> None:
    await faults.played(cluster, fault)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    "fault", [it for it in shared_faults.SHARED_FAULTS if it.is_long], ids=lambda it: it.name
)
async def test_long_shared_fault(shared_cluster: SharedCluster, fault: faults.Fault) -> None:
    await shared_faults.played(shared_cluster, fault)
