"""A slot is free only after it was cleaned."""

import pytest

from inference_service.errors import LeaseInvalid, NoFreeSlot, StaleLease
from inference_service.session.leases import Lease, LeaseRules
from inference_service.session.slots import SlotState, SlotTable

LEASED = LeaseRules(binding=True)


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


def end(table: SlotTable, slot: int) -> None:
    table.clean(slot)
    table.free(slot)


def test_a_lease_gets_the_slot_that_it_names_which_must_exist() -> None:
    table = SlotTable(3, LEASED)
    assert table.acquire(Lease(2, 7)) == 2
    assert [table.state(slot) for slot in range(3)] == [SlotState.FREE, SlotState.FREE, SlotState.HELD]
    with pytest.raises(LeaseInvalid):
        table.acquire(Lease(3, 1))


def test_a_lease_counts_once_and_an_older_one_than_one_seen_is_stale() -> None:
    table = SlotTable(2, LEASED)
    end(table, table.acquire(Lease(0, 7)))
    for epoch in (7, 6):
        with pytest.raises(StaleLease):
            table.acquire(Lease(0, epoch))
    assert table.acquire(Lease(0, 8)) == 0
    with pytest.raises(StaleLease):
        table.acquire(Lease(0, 7))
    assert table.acquire(Lease(1, 6)) == 1  # each slot has its own epochs


def test_a_lease_of_an_occupied_slot_waits_for_it_and_makes_older_ones_stale() -> None:
    table = SlotTable(2, LEASED)
    slot = table.acquire(Lease(0, 5))
    with pytest.raises(NoFreeSlot):
        table.acquire(Lease(0, 9))
    end(table, slot)
    with pytest.raises(StaleLease):
        table.acquire(Lease(0, 8))
    assert table.acquire(Lease(0, 9)) == 0


@pytest.mark.parametrize("steps", [["free"], ["attach", "free"], ["attach", "attach"], ["clean", "clean"]])
def test_a_step_out_of_turn_is_a_defect(steps: list[str]) -> None:
    table = SlotTable(1)
    slot = table.acquire()
    for step in steps[:-1]:
        getattr(table, step)(slot)
    with pytest.raises(ValueError):
        getattr(table, steps[-1])(slot)


def test_a_lease_that_does_not_bind_is_a_wish() -> None:
    table = SlotTable(2, LeaseRules())
    assert table.acquire(Lease(1, 7)) == 1
    assert table.acquire(Lease(1, 6)) == 0
    assert table.held() == [(0, 6), (1, 7)]
    end(table, 1)
    assert table.acquire(Lease(9, 7)) == 1


def test_leased_slot_is_held_until_cleaned_and_reported_freed() -> None:
    table, told = SlotTable(3), []
    table.freed = lambda slot, epoch: told.append((slot, epoch))
    table.acquire()
    slot = table.acquire(Lease(2, 7))
    assert table.held() == [(0, 0), (2, 7)]
    table.clean(slot)
    assert (table.held(), told) == ([(0, 0), (2, 7)], [])
    table.free(slot)
    assert (table.held(), told) == ([(0, 0)], [(2, 7)])


def test_slots_without_leases_are_apart_from_those_with() -> None:
    table = SlotTable(3, LeaseRules(binding=True, unleased=1))
    assert (table.leased, table.free_count) == (2, 2)
    assert table.acquire() == 2
    assert (table.held(), table.highest_epoch) == ([], 0)
    with pytest.raises(NoFreeSlot, match="All 1 slots of this worker are taken"):
        table.acquire()
    with pytest.raises(LeaseInvalid):
        table.acquire(Lease(2, 1))
    assert table.acquire(Lease(0, 1)) == 0
    assert table.free_count == 1


def test_a_lease_that_was_revoked_is_stale_and_its_successor_good() -> None:
    table = SlotTable(1, LEASED)
    assert table.revoke(0, 7) is SlotState.FREE
    with pytest.raises(StaleLease):
        table.acquire(Lease(0, 7))
    assert table.acquire(Lease(0, 8)) == 0
    assert table.revoke(0, 7) is SlotState.HELD
    assert table.highest_epoch == 8
