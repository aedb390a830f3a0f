"""How long a ticket will have to wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws_adapter.dispatch.base import Kind
from ws_adapter.dispatch.estimate import BASE_S, MovingMean, estimate_waits, remaining

lengths = st.floats(0, 600)


def test_example_of_the_protocol() -> None:
    """Busy slots with 20 s and 15 s left; a chat of 15 s waits before an audio session of 120 s."""
    assert estimate_waits([20.0, 15.0], [15.0, 120.0]) == [15.0, 20.0]


def test_each_takes_the_slot_that_is_free_first() -> None:
    assert estimate_waits([10.0], [100.0, 100.0, 100.0]) == [10.0, 110.0, 210.0]


def test_free_slots_count_nothing() -> None:
    assert estimate_waits([0.0, 50.0], [30.0, 30.0]) == [0.0, 30.0]


@given(st.lists(lengths, min_size=1, max_size=8), st.lists(lengths, max_size=20))
def test_waits_never_fall_along_the_queue(slots: list[float], waiting: list[float]) -> None:
    waits = estimate_waits(slots, waiting)

    assert len(waits) == len(waiting)
    assert waits == sorted(waits)


@pytest.mark.parametrize(
    ("expected", "elapsed", "limit", "left"),
    [
        (120, 20, 600, 100),
        (120, 118, 600, 5),
        (120, 400, 600, 5),
        (120, 598, 600, 2),
        (700, 0, 600, 600),
        (9, 9, 0, 5),
    ],
)
def test_remaining(expected: float, elapsed: float, limit: float, left: float) -> None:
    assert remaining(expected, elapsed, limit) == left


def test_base_until_three_sessions_are_seen() -> None:
    mean = MovingMean(BASE_S[Kind.AUDIO_DUPLEX])
    seen = []
    for seconds in (10.0, 20.0, 30.0, 40.0):
        seen.append(mean.seconds)
        mean.add(seconds)

    assert seen == [120.0, 120.0, 120.0, pytest.approx(0.3 * 30 + 0.7 * (0.3 * 20 + 0.7 * 10))]
