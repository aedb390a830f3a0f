"""What the benchmark of schedules compares says the same, and a listening unit costs one forward."""

import pytest

from benchmarks.minicpmo import models
from benchmarks.minicpmo.schedules import Counting, Reference, cost

SESSIONS = 3


@pytest.mark.parametrize("listens", [True, False], ids=["listening", "speaking"])
def test_both_schedules_come_to_the_same_words(listens: bool) -> None:
    ours, theirs = (
        cost(kind(models.tiny(), SESSIONS), SESSIONS, 1, listens=listens) for kind in (Counting, Reference)
    )
    assert ours.said == theirs.said
    assert any(ours.said) is not listens
    assert ours.forwards["language model"] < theirs.forwards["language model"]


def test_listening_costs_one_forward_for_everybody() -> None:
    ours, theirs = (
        cost(kind(models.tiny(), SESSIONS), SESSIONS, 2, listens=True) for kind in (Counting, Reference)
    )
    assert ours.forwards == {"language model": 1 / SESSIONS, "ear": 1 / SESSIONS}
    assert theirs.forwards == {"language model": 3, "ear": 1}
