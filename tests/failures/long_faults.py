"""The faults that take longest to be noticed: `make failures` plays them."""

import pytest

from tests.failures.cluster import Cluster
from tests.failures.faults import FAULTS, Fault, played


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("fault", [it for it in FAULTS if it.is_long], ids=lambda fault: fault.name)
async def test_long_fault(cluster: Cluster, fault: Fault) -> None:
    """As `test_faults.test_fault`."""
    await played(cluster, fault)
