"""How long a ticket will have to wait."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws_adapter.dispatch.estimate import BASE_S, Lengths, estimate_waits
from ws_adapter.protocol.core.kind import Kind

lengths = st.floats(0, 600)


@pytest.mark.parametrize(
    ("slots", "waiting", "waits"),
    [
        ([20.0, 15.0], [15.0, 120.0], [15.0, 20.0]),
        ([10.0], [100.0, 100.0, 100.0], [10.0, 110.0, 210.0]),
        ([0.0, 50.0], [30.0, 30.0], [0.0, 30.0]),
    ],
    ids=["example of the protocol", "one slot", "a free slot"],
)
def test_each_takes_the_first_free_slot(slots: list[float], waiting: list[float], waits: list[float]) -> None:
    assert estimate_waits(slots, waiting) == waits


@given(st.lists(lengths, min_size=1, max_size=8), st.lists(lengths, max_size=20))
def test_waits_never_fall_along_the_queue(slots: list[float], waiting: list[float]) -> None:
    waits = estimate_waits(slots, waiting)
    assert len(waits) == len(waiting)
    assert waits == sorted(waits)


def seen(*lengths: float) -> Lengths:
    """After sessions in audio of these lengths."""
    known = Lengths()
    for seconds in lengths:
        known.add(Kind.AUDIO_DUPLEX, seconds)
    return known


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
def test_remaining_of_a_known_kind(expected: float, elapsed: float, limit: float, left: float) -> None:
    known = seen(*[expected] * 3)
    assert known.remaining(Kind.AUDIO_DUPLEX, elapsed, limit) == pytest.approx(left)


@pytest.mark.parametrize(
    ("over", "elapsed", "limit", "left"),
    [
        ((), 0, 600, 5),
        ((), 6.6, 600, 6.6),
        ((), 60, 600, 60),
        ((), 200, 600, 120),
        ((), 590, 600, 10),
        ((40,), 0, 600, 40),
        ((40,), 10, 600, 30),
        ((40,), 30, 600, 30),
        ((3, 3), 60, 0, 60),
    ],
)
def test_running_session_is_guessed_to_last_as_long_again(
    over: tuple[float, ...], elapsed: float, limit: float, left: float
) -> None:
    """Or as long as those before it, if that is longer; never longer than the base value or the limit."""
    assert seen(*over).remaining(Kind.AUDIO_DUPLEX, elapsed, limit) == left


@pytest.mark.parametrize(
    ("over", "running", "length"),
    [
        ((), (), BASE_S[Kind.AUDIO_DUPLEX]),
        ((), (10, 20), 30),
        ((), (1,), 5),
        ((), (300,), BASE_S[Kind.AUDIO_DUPLEX]),
        ((8,), (300,), 8),
        ((10, 20, 30), (300,), 0.3 * 30 + 0.7 * (0.3 * 20 + 0.7 * 10)),
    ],
)
def test_length_of_a_waiting_session(
    over: tuple[float, ...], running: tuple[float, ...], length: float
) -> None:
    assert seen(*over).expected(Kind.AUDIO_DUPLEX, running) == pytest.approx(length)


def test_three_sessions_of_a_kind_make_it_known() -> None:
    assert [seen(*[10.0] * count).are_known(Kind.AUDIO_DUPLEX) for count in range(5)] == [
        False, False, False, True, True,
    ]  # fmt: skip
    assert not seen(10, 10, 10).are_known(Kind.CHAT)
