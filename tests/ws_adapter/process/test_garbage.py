"""Reference cycles in a process whose objects are frozen."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.process.garbage import WHOLE_S, Garbage, held_bytes

MIB = 2**20


class Cycle:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


class Memory:
    """Memory in use, in bytes."""

    def __init__(self) -> None:
        self.held = 400 * MIB

    def __call__(self) -> int:
        return self.held


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def garbage(clock: ManualClock, memory: Memory) -> Iterator[Garbage]:
    thresholds = gc.get_threshold()
    yield Garbage(clock, memory)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


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


def test_memory_that_grows_is_collected_before_its_time(garbage: Garbage, memory: Memory) -> None:
    cycle = weakref.ref(Cycle())
    memory.held += 610 * MIB
    garbage.tend()
    assert cycle() is not None
    memory.held += 10 * MIB
    garbage.tend()
    assert cycle() is None


def test_memory_of_this_process_counts_large_buffers() -> None:
    before = held_bytes()
    buffer = b"x" * (64 * MIB)
    assert held_bytes() - before > 60 * MIB
    assert len(buffer) == 64 * MIB
