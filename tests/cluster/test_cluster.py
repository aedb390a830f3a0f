"""A short trial; `make cluster` is the long one."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.__main__ import RECORDINGS
from tests.cluster.nodes import Cluster
from tests.cluster.scripted import SLOTS
from tests.cluster.talkers import Talkers
from tests.cluster.trial import Trial
from tests.support.redis_server import INSTALLED, MISSING

TALKERS = 5
SEED = 1027
"""Draws a worker that stands still until it is forgotten, then Redis, then an adapter."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        cluster = Cluster(Path(folder), SLOTS, ("tests.cluster.scripted", "worker"))
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.close()


@pytest.mark.skipif(INSTALLED is None, reason=MISSING)
@pytest.mark.long
async def test_killed_process_loses_only_its_conversations_and_leaks_nothing(cluster: Cluster) -> None:
    trial = Trial(cluster, Talkers(cluster, sorted(RECORDINGS.glob("*.wav")), units=2))
    await trial.run(TALKERS, rounds=3, seed=SEED)
    assert trial.faults == []
    assert [phase for phase in trial.phases if not phase.is_good] == []
    assert all(one.lost in ("", "backend_error", "connection_lost") for one in trial.talkers.conversations)
