"""Reference cycles in a process whose objects are frozen."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ws_adapter.process.garbage import MORE_BYTES, MORE_OBJECTS, MOST_LOST, Garbage, Held

MIB = 2**20
START = Held(500_000, 300 * MIB)
MOST = Held(2 * START.objects + MORE_OBJECTS, 2 * START.resident_bytes + MORE_BYTES)


class Cycle:
    """An object that only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@dataclass
class Process:
    """A process with a server."""

    held: Held = START
    lost_connections: int = 7
    journal_bytes: int = 0


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def garbage(process: Process) -> Iterator[Garbage]:
    thresholds = gc.get_threshold()
    yield Garbage(process, lambda: process.held)
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def frozen_cycle(garbage: Garbage) -> weakref.ref[Cycle]:
    """Return a cycle that the collector does not look at."""
    cycle = weakref.ref(Cycle())
    garbage.tend()
    gc.collect()
    assert cycle() is not None
    return cycle


def test_cycles_are_freed_behind_a_thousand_lost_connections(garbage: Garbage, process: Process) -> None:
    for _ in range(2):
        cycle = frozen_cycle(garbage)
        process.lost_connections += MOST_LOST - 1
        garbage.tend()
        assert cycle() is not None, "it is not worth a pause yet"
        process.lost_connections += 1
        garbage.tend()
        assert cycle() is None


@pytest.mark.parametrize(
    ("held", "more"),
    [
        (MOST._replace(resident_bytes=0), Held(MOST.objects + 1, 0)),
        (MOST._replace(objects=0), Held(0, MOST.resident_bytes + 1)),
    ],
)
def test_cycles_are_freed_as_soon_as_the_process_has_much_more(
    garbage: Garbage, process: Process, held: Held, more: Held
) -> None:
    cycle = frozen_cycle(garbage)
    process.held = held
    garbage.tend()
    assert cycle() is not None, "it has what it may have"
    process.held = more
    garbage.tend()
    assert cycle() is None


def test_journals_are_no_garbage(garbage: Garbage, process: Process) -> None:
    process.journal_bytes = 1000 * MIB
    process.held = MOST._replace(resident_bytes=MOST.resident_bytes + process.journal_bytes)
    cycle = frozen_cycle(garbage)
    process.journal_bytes -= 1
    garbage.tend()
    assert cycle() is None


def test_objects_in_use_are_looked_at_once(garbage: Garbage, process: Process) -> None:
    process.held = Held(MOST.objects + 1, MOST.resident_bytes + 1)
    garbage.tend()
    cycle = frozen_cycle(garbage)
    garbage.tend()
    assert cycle() is not None


def test_large_buffers_count() -> None:
    before = Held.now()
    buffer = b"x" * (64 * MIB)
    assert Held.now().resident_bytes - before.resident_bytes > 60 * MIB
    assert len(buffer) == 64 * MIB
