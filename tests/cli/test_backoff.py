"""Tests of the backoff between restarts of a process."""

import random

import pytest

from antiphon_command.processes.backoff import FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S, Backoff


def test_backoff_doubles_up_to_the_longest_pause_less_a_random_quarter() -> None:
    backoff = Backoff(random.Random(1))
    pauses = [backoff.after(0.0) for _ in range(12)]

    expected = [min(FIRST_PAUSE_S * 2**count, LONGEST_PAUSE_S) for count in range(12)]
    assert all(0.75 * most <= pause <= most for pause, most in zip(pauses, expected, strict=True))
    assert max(pauses) <= LONGEST_PAUSE_S


def test_backoff_of_processes_that_died_together_differs() -> None:
    assert len({Backoff(random.Random(seed)).after(0.0) for seed in range(8)}) == 8


@pytest.mark.parametrize(("ran_s", "is_short"), [(STEADY_S, True), (STEADY_S - 1, False)])
def test_backoff_starts_over_after_a_stable_run(ran_s: float, is_short: bool) -> None:
    backoff = Backoff(random.Random(1))
    for _ in range(8):
        backoff.after(0.0)

    assert (backoff.after(ran_s) <= FIRST_PAUSE_S) is is_short
