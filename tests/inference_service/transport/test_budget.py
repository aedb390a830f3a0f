"""What a caller may make the worker do for nothing, and what it may not."""

import pytest

from inference_service.transport.budget import (
    BYTE,
    CONTROL,
    FRAME,
    MOST,
    MOST_A_CALL,
    PER_S,
    PER_S_A_CALL,
    Budget,
    Reserve,
)

CALLS = 100
ALL = MOST + CALLS * MOST_A_CALL
RATE = PER_S + CALLS * PER_S_A_CALL


def test_so_much_at_once_and_no_more() -> None:
    budget = Budget(CALLS, 10.0)
    assert budget.spend(ALL, 10.0)
    assert not budget.spend(CONTROL, 10.0)


def test_it_comes_back_with_time_and_never_becomes_more() -> None:
    budget = Budget(CALLS, 10.0)
    budget.spend(ALL, 10.0)
    assert budget.spend(RATE / 2, 10.5)
    assert not budget.spend(CONTROL, 10.5)
    assert budget.spend(ALL, 1000.0)
    assert not budget.spend(CONTROL, 1000.0)


@pytest.mark.parametrize("slots", [1, 64, 1000])
def test_all_sessions_may_begin_at_once_and_end_at_once(slots: int) -> None:
    """Each with three calls of 400 bytes of headers, and a reset or trailers for each."""
    budget = Budget(4 * slots + 16, 0.0)
    session = 3 * (2 * CONTROL + 400 * BYTE)
    for at in (0.0, 5.0):
        for _ in range(slots):
            assert budget.spend(session, at)


@pytest.mark.parametrize("slots", [1, 64, 1000])
def test_all_sessions_may_talk_for_ever(slots: int) -> None:
    """Each second a unit: sound and a picture in frames of 16 KiB, and for all the answers room and pings."""
    budget = Budget(4 * slots + 16, 0.0)
    unit = (4 + 8 + 3 + 12 + 10) * FRAME
    for at in range(100):
        for _ in range(slots):
            assert budget.spend(unit, float(at))


def test_what_is_refused_costs_nothing() -> None:
    budget = Budget(CALLS, 10.0)
    assert not budget.spend(ALL + CONTROL, 10.0)
    assert budget.spend(ALL, 10.0)


def test_a_reserve_has_what_was_saved_for_as_many_calls() -> None:
    reserve = Reserve(10.0)
    assert not reserve.spend(FRAME, 10.0, CALLS)
    assert reserve.spend(CALLS * PER_S_A_CALL, 11.0, CALLS)
    assert reserve.spend(MOST_A_CALL, 1000.0, 0)
    assert not reserve.spend(FRAME, 1000.0, 0)


@pytest.mark.parametrize("sessions", [1, 64])
def test_sessions_may_talk_for_ever_of_a_reserve_alone(sessions: int) -> None:
    """As `test_all_sessions_may_talk_for_ever`, when others of their origin have left nothing."""
    reserve = Reserve(0.0)
    unit = (4 + 8 + 3 + 12 + 10) * FRAME
    for at in range(1, 100):
        for _ in range(sessions):
            assert reserve.spend(unit, float(at), 3 * sessions)
