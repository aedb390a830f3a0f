"""Tests of the scheduler: its choice of requests for a tick, over random requests."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference_service.engine.batch.scheduler import LEAST_SHARE, Grant, Request, Share, is_urgent, schedule

REQUESTS = st.lists(
    st.builds(
        Request,
        session=st.integers(0, 100),
        tokens=st.integers(1, 400),
        arrival=st.floats(0, 10),
        decoding=st.booleans(),
        due=st.none() | st.floats(0, 10),
    ),
    max_size=30,
    unique_by=lambda request: request.session,
)
BUDGETS = st.integers(1, 1500)
SHARES = st.integers(0, 1500)


def granted(requests: list[Request], budget: int, share: int) -> dict[int, int]:
    return {grant.session: grant.tokens for grant in schedule(requests, budget, share)}


def tokens(requests: list[Request]) -> int:
    return sum(request.tokens for request in requests)


def units(requests: list[Request]) -> list[Request]:
    return [request for request in requests if request.due is not None]


def others(requests: list[Request]) -> list[Request]:
    return [request for request in requests if request.due is None]


@settings(deadline=None)
@given(REQUESTS, BUDGETS, SHARES)
def test_budget_and_share_are_kept_and_used_in_full(requests: list[Request], budget: int, share: int) -> None:
    grants = schedule(requests, budget, share)
    got, asked = granted(requests, budget, share), {r.session: r.tokens for r in requests}
    urgent, waiting = units(requests), others(requests)
    kept = min(share, budget, tokens(waiting))
    assert sum(got.values()) <= budget + bool(urgent), "a unit gets one token whatever else is granted"
    assert sum(got.get(r.session, 0) for r in waiting) == kept
    assert sum(got.get(r.session, 0) for r in urgent) == min(tokens(urgent), max(1, budget - kept))
    assert len({grant.session for grant in grants}) == len(grants), "nobody twice"
    assert all(1 <= grant.tokens <= asked[grant.session] for grant in grants)
    assert granted(requests[::-1], budget, share) == got, "the order of the requests does not matter"


@settings(deadline=None)
@given(REQUESTS, BUDGETS, SHARES)
def test_units_go_by_slack_and_other_work_by_age_of_which_neither_prompts_nor_answers_starve(
    requests: list[Request], budget: int, share: int
) -> None:
    got, urgent = granted(requests, budget, share), units(requests)
    unserved = [r for r in urgent if r.decoding and got.get(r.session, 0) < r.tokens]
    assert not unserved or all(r.decoding for r in urgent if r.session in got), "units that decode go first"
    for kind in (True, False):
        alike = [r for r in urgent if r.decoding is kind]
        for first in alike:
            if got.get(first.session, 0) < first.tokens:
                assert not [r for r in alike if (r.due or 0) > (first.due or 0) and r.session in got]

        alike = [r for r in others(requests) if r.decoding is kind]
        half = min(share, budget) // 2
        assert sum(got.get(r.session, 0) for r in alike) >= min(half, tokens(alike))
        for older in alike:
            if got.get(older.session, 0) < older.tokens:
                assert not [r for r in alike if r.arrival > older.arrival and r.session in got]


def test_long_prompt_is_chunked_and_due_unit_progresses_without_budget() -> None:
    request = Request(session=3, tokens=100, arrival=0.0, decoding=False)
    assert schedule([request], 40, 40) == [Grant(3, 40)]
    assert schedule([replace(request, due=1.0)], 0, 0) == [Grant(3, 1)]


def test_a_unit_of_a_long_upload_is_not_urgent_before_its_time() -> None:
    assert not is_urgent(None, now=5.0)
    assert not is_urgent(10.0, now=5.0)
    assert is_urgent(6.0, now=5.0)
    assert is_urgent(4.0, now=5.0)


def test_everything_is_theirs_while_no_unit_waits() -> None:
    share = Share(1024)
    for _ in range(3):
        assert share.rows(units_wait=False) == 1024
        share.spend(0.0, 0.3, units_waited=False)


@pytest.mark.parametrize(("most", "portion"), [(1024, 256), (128, LEAST_SHARE), (5, 5)])
def test_a_quarter_of_the_rows_and_at_least_64_are_theirs_while_a_unit_waits(most: int, portion: int) -> None:
    assert Share(most).rows(units_wait=True) == portion


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(1e-4, 0.05), st.floats(1e-4, 0.2)), min_size=50, max_size=200))
def test_they_never_get_more_than_an_eighth_of_the_time_nor_starve(ticks: list[tuple[float, float]]) -> None:
    """At any cost of a portion, only the last one may still await its compensation."""
    share, theirs, ours, made_up = Share(1024), 0.0, 0.0, True
    for unit, cost in ticks:
        rows = share.rows(units_wait=True)
        assert rows or not made_up
        others = cost if rows else 0.0
        if rows:
            last, since = others, 0.0
        share.spend(unit, others, units_waited=True)
        ours, theirs, since = ours + unit, theirs + others, since + unit
        made_up = since > last * 7 + 1e-9
        assert theirs <= ours / 7 + last + 1e-9


def test_a_unit_that_came_during_their_tick_has_waited_for_it() -> None:
    share = Share(128)
    share.spend(0.0, 0.03, units_waited=False)
    assert share.rows(units_wait=True) == 0
    share.spend(0.3, 0.0, units_waited=True)
    assert share.rows(units_wait=True) == LEAST_SHARE
