"""Tests of the schedule benchmark: equal outputs, and one joint forward for a listening unit."""

import pytest

from benchmarks.minicpmo import models
from benchmarks.minicpmo.schedules import Counting, Reference, cost

SESSIONS = 3


@pytest.mark.parametrize(("listens", "units"), [(True, 1), (False, 1), (True, 2)])
def test_schedules_give_same_text_and_listening_costs_one_joint_forward(listens: bool, units: int) -> None:
    ours, theirs = (
        cost(kind(models.tiny(), SESSIONS), SESSIONS, units, listens=listens)
        for kind in (Counting, Reference)
    )
    assert ours.said == theirs.said
    assert any(ours.said) is not listens
    assert ours.forwards["language model"] < theirs.forwards["language model"]
    if units == 2:
        assert ours.forwards == {"language model": 1 / SESSIONS, "ear": 1 / SESSIONS}
        assert theirs.forwards == {"language model": 3, "ear": 1}
