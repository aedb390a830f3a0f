"""How many slots a worker has that was given no number."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from inference_service.checkpoints.location import find
from inference_service.engine.batch import memory
from inference_service.families import capacity, loading, table
from inference_service.families.capacity import CROWD, FEWEST, slots_that_fit, usual_slots
from inference_service.families.family import Build
from inference_service.families.memory import footprint
from inference_service.families.memory.footprint import Footprint
from inference_service.families.warmup import unit_seconds
from inference_service.kernels import selection
from inference_service.options import MOST_SLOTS, WorkerOptions

CPU = torch.device("cpu")
MIB = 2**20
FOOTPRINT = Footprint({"weights": 100 * MIB}, {"context": 10 * MIB}, working={"forward": 20 * MIB})


@pytest.fixture(scope="module")
def mini() -> Build:
    return table.load(find("antiphon-mini"), CPU)


def seconds(cost: float) -> Callable[[Any, int], float]:
    return lambda runtime, sessions: cost


@pytest.mark.parametrize(
    ("footprint", "device", "free", "slots"),
    [
        (FOOTPRINT, "cpu", 220 * MIB, 9),
        (FOOTPRINT, "cpu", 2000 * MIB, MOST_SLOTS),
        (FOOTPRINT, "cpu", 30 * MIB, 1),
        (FOOTPRINT, "cpu", None, FEWEST),
        (FOOTPRINT, "cuda", 220 * MIB, 17),
        (None, "cpu", 10**12, FEWEST),
    ],
)
def test_half_of_the_free_memory_of_a_host_or_nine_tenths_of_another_device_may_be_taken(
    footprint: Footprint | None, device: str, free: int | None, slots: int
) -> None:
    assert slots_that_fit(footprint, torch.device(device), free) == slots


@pytest.mark.parametrize(("cost", "slots"), [(0.1, 20), (0.001, MOST_SLOTS), (3.0, FEWEST)])
def test_a_slow_machine_has_fewer_than_fit_and_a_fast_one_all(mini: Build, cost: float, slots: int) -> None:
    assert usual_slots(mini, seconds(cost)) == slots


def test_capacity_trial_runs_crowd_and_leaves_cache_empty(mini: Build) -> None:
    runtime: Any = mini(CROWD)
    assert 0 < unit_seconds(runtime, CROWD) < 60
    assert all(not keys.any() for keys in runtime.language.cache.keys)


def test_trial_runtimes_are_gone_before_memory_is_measured(
    mini: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the garbage collector off, as it may not have run by then."""
    made: list[weakref.ref[torch.Tensor]] = []
    left: list[int] = []

    def make(slots: int) -> Any:
        runtime = mini.make(slots)
        made.append(weakref.ref(runtime.language.cache.keys))
        return runtime

    def free(device: torch.device) -> int:
        left.append(sum(it() is not None for it in made))
        return 10**12

    for module in (footprint, capacity):
        monkeypatch.setattr(module, "free_bytes", free)
    monkeypatch.setattr(table, "load", lambda *given: Build(make, CPU, mini.footprint))
    gc.disable()
    try:
        engine = loading.load_engine(
            WorkerOptions(kernels=selection.selected()), lambda told: None, lambda message: None
        )
    finally:
        gc.enable()
    engine.stop()

    assert len(made) == 3, "one to warm up, one to measure, one to serve"
    assert left == [0] * 4


def test_free_memory_of_a_cuda_device_counts_what_torch_caches(monkeypatch: pytest.MonkeyPatch) -> None:
    free, cached = [100 * MIB], [40 * MIB]

    def empty_cache() -> None:
        free[0] += cached[0]
        cached[0] = 0

    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free[0], 10**12))

    assert memory.free_bytes(torch.device("cuda:0")) == 140 * MIB


@pytest.mark.parametrize(("separate", "expected"), [(False, 80), (True, 20 + 80 + 16)])
def test_steps_with_memory_of_their_own_are_added_up(separate: bool, expected: int) -> None:
    told = Footprint({}, {"context": 1}, {}, {"a": 20, "b": 10}, {"vocoder": 10}, {"tokens": 2}, separate)
    assert told.step(8) == expected


@pytest.mark.parametrize(("given", "slots"), [(3, 3), (None, 7)])
def test_a_number_that_is_given_is_kept(
    monkeypatch: pytest.MonkeyPatch, given: int | None, slots: int
) -> None:
    monkeypatch.setattr("inference_service.families.capacity.usual_slots", lambda build: 7)
    options = WorkerOptions(slots=given, kernels=selection.selected())
    engine = loading.load_engine(options, lambda told: None, lambda message: None)
    engine.stop()
    assert engine.slots == slots
