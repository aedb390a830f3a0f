"""How many slots a worker has that was given no number."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inference_service.checkpoints.location import find
from inference_service.families import loading, table
from inference_service.families.capacity import CROWD, FEWEST, slots_that_fit, usual_slots
from inference_service.families.footprint import Footprint
from inference_service.families.table import Build
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


@pytest.mark.parametrize(("free", "slots"), [(220, 9), (2000, MOST_SLOTS), (30, 1), (None, FEWEST)])
def test_half_of_the_free_memory_of_a_host_may_be_taken(free: int | None, slots: int) -> None:
    assert slots_that_fit(FOOTPRINT, CPU, None if free is None else free * MIB) == slots


def test_nine_tenths_of_that_of_another_device() -> None:
    assert slots_that_fit(FOOTPRINT, torch.device("cuda"), 220 * MIB) == 17


def test_without_a_known_footprint_there_are_few() -> None:
    assert slots_that_fit(None, CPU, 10**12) == FEWEST


@pytest.mark.parametrize(("cost", "slots"), [(0.1, 20), (0.001, MOST_SLOTS), (3.0, FEWEST)])
def test_a_slow_machine_has_fewer_than_fit_and_a_fast_one_all(mini: Build, cost: float, slots: int) -> None:
    assert usual_slots(mini, seconds(cost)) == slots


def test_what_is_tried_out_is_a_crowd_and_leaves_nothing_behind(mini: Build) -> None:
    runtime: Any = mini(CROWD)

    assert 0 < unit_seconds(runtime, CROWD) < 60
    assert all(not keys.any() for keys in runtime.language.cache.keys)


@pytest.mark.parametrize(("given", "slots"), [(3, 3), (None, 7)])
def test_a_number_that_is_given_is_kept(
    monkeypatch: pytest.MonkeyPatch, given: int | None, slots: int
) -> None:
    monkeypatch.setattr("inference_service.families.capacity.usual_slots", lambda build: 7)
    options = WorkerOptions(slots=given, kernels=selection.selected())
    engine = loading.load_engine(options, lambda told: None, lambda message: None)
    engine.stop()

    assert engine.slots == slots
