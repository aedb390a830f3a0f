"""A slot is free only after it was cleaned."""

import pytest

from inference_service.errors import NoFreeSlot
from inference_service.slots import SlotState, SlotTable


def test_a_slot_goes_round_once() -> None:
    table = SlotTable(1)
    slot = table.acquire()
    assert table.state(slot) is SlotState.HELD
    table.attach(slot)
    table.clean(slot)
    assert table.state(slot) is SlotState.CLEANING
    table.free(slot)
    assert table.acquire() == slot


@pytest.mark.parametrize("steps", [[], ["attach"], ["attach", "clean"], ["clean"]])
def test_no_slot_is_given_away_before_it_is_free(steps: list[str]) -> None:
    table = SlotTable(1)
    slot = table.acquire()
    for step in steps:
        getattr(table, step)(slot)
    assert table.free_count == 0
    with pytest.raises(NoFreeSlot):
        table.acquire()


@pytest.mark.parametrize("steps", [["free"], ["attach", "free"], ["attach", "attach"], ["clean", "clean"]])
def test_a_step_out_of_turn_is_a_defect(steps: list[str]) -> None:
    table = SlotTable(1)
    slot = table.acquire()
    for step in steps[:-1]:
        getattr(table, step)(slot)
    with pytest.raises(ValueError):
        getattr(table, steps[-1])(slot)
