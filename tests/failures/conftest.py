"""One cluster for all scenes of a test process; whatever a scene ends is started again by it."""

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.failures.cluster import Cluster, running_cluster
from tests.failures.visits import STATES


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster() -> AsyncIterator[Cluster]:
    async with running_cluster(slots=len(STATES)) as found:
        yield found
