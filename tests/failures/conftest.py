"""One cluster of each kind for all tests of a process; stopped processes are started again."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.failures.cluster import Cluster, started
from tests.failures.shared import SharedCluster
from tests.failures.visits import STATES
from tests.support.redis_server import INSTALLED, MISSING


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster() -> AsyncIterator[Cluster]:
    async with started(Cluster(slots=len(STATES))) as found:
        yield found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_cluster() -> AsyncIterator[SharedCluster]:
    if INSTALLED is None:
        pytest.skip(MISSING)
    found = SharedCluster(slots=len(STATES))
    async with started(found):
        yield found
