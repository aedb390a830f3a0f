"""The benchmark of the shared queue does what its rows say, and what is computed from it adds up."""

import math

import pytest

from antiphon_service.redis import call, prefix
from benchmarks.dispatch import cluster, scale
from benchmarks.dispatch.cluster import ADAPTERS, Cluster, percentile
from benchmarks.dispatch.scale import Costs, Redis, largest
from tests.support.redis_server import RedisServer

COSTS = Costs(
    adapter_sessions=1000.0,
    session_bytes=1024.0,
    spoken=0.5,
    worker_s=0.002,
    ticket_beat_s=5e-6,
    slot_s=5e-6,
    start_s=100e-6,
    lease_state_s=2e-6,
    arrival_s=100e-6,
    peer_beat_s=300e-6,
    machines=(),
)


async def test_freed_slot_goes_to_longest_waiting_ticket(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_TICKET_MS", 60_000)
    monkeypatch.setattr(cluster, "_WORKER_MS", 60_000)
    group = Cluster(redis_server.url)
    try:
        await group.start()
        await group.fill(2 * ADAPTERS)
        assert sum(len(adapter.waiting) for adapter in group.adapters) == 2 * ADAPTERS
        settled = int(redis_server.command("GET", f"{prefix('benchmark/audio')}boot").split()[1]) - 10_000
        redis_server.command("SET", f"{prefix('benchmark/audio')}boot", str(settled))

        await group.worker_beat("worker-0")
        for adapter in group.adapters:
            await adapter.beat()
        assert group.grants == cluster.SLOTS
        await group.worker_beat("worker-0")
        await group.end_one()
        for adapter in group.adapters:
            await adapter.beat()

        assert group.grants == cluster.SLOTS + 1
        assert len(group.waits_s) == 1
        assert sum(len(adapter.waiting) for adapter in group.adapters) == 2 * ADAPTERS - cluster.SLOTS
        assert await call(group._client, "stats", prefix("benchmark/audio"))
    finally:
        await group.stop()


def test_percentile_is_of_the_values_in_order() -> None:
    values = [float(value) for value in reversed(range(100))]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([3.0], 0.99)) == (50, 99, 3)


def test_load_of_redis_grows_with_its_parts() -> None:
    load = Redis(COSTS, 120_000)
    assert load.tickets == pytest.approx(12_000 * 5e-6)
    assert load.starts == pytest.approx(1000 * 100e-6)
    assert load.workers == pytest.approx(0.6)
    assert load.limits == pytest.approx(1500 * 100e-6 + 120 * 300e-6)
    assert load.all == pytest.approx(load.tickets + load.starts + load.workers + load.limits + load.state)


def test_largest_is_where_it_no_longer_fits() -> None:
    assert largest(lambda size: size <= 12_345) == pytest.approx(12_345, rel=0.002)
    assert math.isclose(largest(lambda size: size * size <= 1e6), 1000, rel_tol=0.002)


def test_tables_list_every_size_and_mark_unmeasured_goals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "measured", lambda: COSTS)
    text = scale.tables()
    assert "| conversations | 1,000 | 100,000 | 10,000,000 |" in text
    assert "| GPUs at 64 a card (a goal, not measured) | 16 | 1,563 | 156,250 |" in text
    assert "| adapters, a core each | 1 | 100 | 10,000 |" in text
