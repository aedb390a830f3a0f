"""Reference cycles in a process whose objects are frozen."""

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest

from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.process.garbage import WHOLE_S, Garbage


class Cycle:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def garbage(clock: ManualClock) -> Iterator[Garbage]:
    thresholds = gc.get_threshold()
    yield Garbage(clock)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def test_frozen_cycle_is_freed_by_the_next_collection_of_everything(
    garbage: Garbage, clock: ManualClock
) -> None:
    cycle = weakref.ref(Cycle())
    garbage.tend()
    gc.collect()
    assert cycle() is not None
    await clock.advance(WHOLE_S)
    garbage.tend()
    assert cycle() is None


def test_memory_that_grows_is_collected_before_its_time(
    garbage: Garbage, monkeypatch: pytest.MonkeyPatch
) -> None:
    cycle = weakref.ref(Cycle())
    blocks = sys.getallocatedblocks()
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: round(1.4 * blocks))
    garbage.tend()
    assert cycle() is not None
    monkeypatch.setattr(sys, "getallocatedblocks", lambda: 2 * blocks + 1_000_000)
    garbage.tend()
    assert cycle() is None
