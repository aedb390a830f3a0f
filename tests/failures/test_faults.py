"""Each fault of the matrix, with a client in each state of a session and two who talk on."""

import pytest

from tests.failures.cluster import Cluster
from tests.failures.faults import FAULTS, Fault, played


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("fault", [it for it in FAULTS if not it.is_long], ids=lambda fault: fault.name)
async def test_fault(cluster: Cluster, fault: Fault) -> None:
    """Everybody has the one end that is theirs, in time, and then nothing is left of them."""
    await played(cluster, fault)
