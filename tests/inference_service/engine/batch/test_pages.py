"""Tests of the page pool: no owner loses a page, and only old pages without an owner are evicted."""

import random

import pytest

from inference_service.engine.batch.pages import PAGE, STALE_S, PagePool, slot_pages


def test_pages_of_a_slot_hold_its_rows_wherever_they_begin() -> None:
    for capacity in range(1, 100):
        for offset in range(PAGE):
            assert slot_pages(capacity) * PAGE >= offset + capacity


def test_pages_taken_in_sequence_are_adjacent() -> None:
    pool = PagePool(32)
    first, _ = pool.take(0)
    other, _ = pool.take(20)
    taken = [first]
    for _ in range(10):
        taken.append(pool.take(taken[-1] + 1)[0])
    assert taken == list(range(11))
    assert other == 20


def test_page_is_used_until_its_last_reference_is_gone() -> None:
    pool = PagePool(2)
    (page, _), (nameless, _) = pool.take(0), pool.take(1)
    assert pool.is_private(page)
    pool.publish(page, b"prompt")
    assert not pool.is_private(page), "others may find it"
    assert (pool.find(b"prompt"), pool.find(b"prompt")) == (page, page)
    assert pool.release([nameless]) == [nameless]
    assert pool.release([page]) == pool.release([page]) == []
    assert (pool.used, pool.idle, pool.free) == (1, 0, 1)
    assert pool.release([page]) == []
    assert (pool.used, pool.idle, pool.free) == (0, 1, 1)


def test_content_that_is_known_already_gets_no_second_page() -> None:
    pool = PagePool(2)
    (one, _), (two, _) = pool.take(0), pool.take(1)
    pool.publish(one, b"prompt")
    pool.publish(two, b"prompt")
    pool.publish(one, b"other")
    assert pool.find(b"prompt") == one
    assert pool.find(b"other") is None
    assert pool.release([two]) == [two]


def test_least_recently_used_prefix_is_evicted_first() -> None:
    pool = PagePool(3)
    for name in (b"a", b"b", b"c"):
        page, _ = pool.take(0)
        pool.publish(page, name)
        pool.release([page])
    found = pool.find(b"a")
    assert found is not None
    pool.release([found])

    _, evicted = pool.take(0)

    assert len(evicted) == 1
    assert pool.find(b"b") is None
    assert pool.find(b"a") is not None
    assert pool.find(b"c") is not None


def test_all_pages_in_use_are_a_memory_error_and_nothing_is_lost() -> None:
    pool = PagePool(2)
    (page, _), _ = pool.take(0), pool.take(0)
    with pytest.raises(MemoryError):
        pool.take(0)
    assert pool.release([page]) == [page]
    assert pool.take(0)[0] == page


@pytest.mark.parametrize("seed", range(5))
def test_flood_of_prefixes_evicts_only_unused_pages(seed: int) -> None:
    rng, pool = random.Random(seed), PagePool(40)
    kept: list[tuple[int, bytes]] = []
    for number in range(4):
        page, _ = pool.take(rng.randrange(40))
        pool.publish(page, b"kept %d" % number)
        kept.append((page, b"kept %d" % number))
    present: list[list[int]] = []
    for number in range(500):
        if len(present) == 4:
            pool.release(present.pop(rng.randrange(4)))
        mine: list[int] = []
        for part in range(rng.randint(1, 9)):
            page, evicted = pool.take(mine[-1] + 1 if mine else rng.randrange(40))
            in_use = {p for pages in present for p in pages} | {p for p, _ in kept} | set(mine)
            assert page not in in_use
            assert not in_use & set(evicted)
            mine.append(page)
            pool.publish(page, b"%d %d" % (number, part))
        present.append(mine)
        assert pool.used == len(kept) + sum(map(len, present))
        assert pool.used + pool.idle + pool.free == pool.pages

    for page, name in kept:
        assert pool.find(name) == page


def fill(pool: PagePool, owner: bytes, *names: bytes) -> None:
    """Leaves idle pages that a tenant has published."""
    for name in names:
        page, _ = pool.take(0, owner)
        pool.publish(page, name, owner)
        pool.release([page])


def known(pool: PagePool, *names: bytes) -> list[bytes]:
    return [name for name in names if name in pool._known]


def test_eviction_for_a_tenant_takes_its_own_idle_pages_before_older_ones_of_others() -> None:
    """Else whoever fills the cache sees in its own pages how much others do."""
    pool = PagePool(4, clock=lambda: 0.0)
    fill(pool, b"watcher", b"w1", b"w2")
    fill(pool, b"other", b"o1", b"o2")
    for number in range(20):
        fill(pool, b"other", b"more %d" % number)
    assert known(pool, b"w1", b"w2") == [b"w1", b"w2"]
    assert pool.idle == 4


def test_eviction_for_a_tenant_without_idle_pages_takes_the_oldest_of_others() -> None:
    pool = PagePool(2, clock=lambda: 0.0)
    fill(pool, b"watcher", b"w1", b"w2")
    pool.take(0, b"other")
    assert known(pool, b"w1", b"w2") == [b"w2"]


def test_eviction_takes_stale_pages_of_any_tenant_first() -> None:
    """Tenants that never come back do not fill the cache for good."""
    now = 0.0
    pool = PagePool(3, clock=lambda: now)
    fill(pool, b"gone", b"g1")
    now = STALE_S - 1
    fill(pool, b"active", b"a1", b"a2")
    now = STALE_S
    pool.take(0, b"active")
    assert known(pool, b"g1", b"a1", b"a2") == [b"a1", b"a2"]


def test_forgotten_tenant_leaves_no_idle_page_and_others_keep_theirs() -> None:
    pool = PagePool(4)
    fill(pool, b"one", b"a", b"b")
    fill(pool, b"other", b"c")
    used, _ = pool.take(0, b"one")
    pool.publish(used, b"d", b"one")
    assert len(pool.forget(b"one")) == 2
    assert known(pool, b"a", b"b", b"c", b"d") == [b"c", b"d"]
    assert (pool.used, pool.idle, pool.free) == (1, 1, 2)
    assert pool.forget(b"one") == pool.forget(b"nobody") == []
