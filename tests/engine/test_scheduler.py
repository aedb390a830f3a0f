"""Who takes part in a tick, over random requests."""

from hypothesis import given, settings
from hypothesis import strategies as st

from inference_service.engine.scheduler import Grant, Request, schedule

REQUESTS = st.lists(
    st.builds(
        Request,
        session=st.integers(0, 100),
        tokens=st.integers(1, 400),
        arrival=st.floats(0, 10),
        decoding=st.booleans(),
    ),
    max_size=30,
    unique_by=lambda request: request.session,
)
BUDGETS = st.integers(1, 1500)


def granted(requests: list[Request], budget: int) -> dict[int, int]:
    return {grant.session: grant.tokens for grant in schedule(requests, budget)}


@settings(deadline=None)
@given(REQUESTS, BUDGETS)
def test_budget_is_kept(requests: list[Request], budget: int) -> None:
    assert sum(granted(requests, budget).values()) <= budget


@settings(deadline=None)
@given(REQUESTS, BUDGETS)
def test_budget_is_used_up_while_anybody_waits(requests: list[Request], budget: int) -> None:
    assert sum(granted(requests, budget).values()) == min(budget, sum(r.tokens for r in requests))


@settings(deadline=None)
@given(REQUESTS, BUDGETS)
def test_nobody_gets_nothing_twice_or_more_than_asked(requests: list[Request], budget: int) -> None:
    grants = schedule(requests, budget)

    asked = {r.session: r.tokens for r in requests}
    assert len({grant.session for grant in grants}) == len(grants)
    assert all(1 <= grant.tokens <= asked[grant.session] for grant in grants)


@settings(deadline=None)
@given(REQUESTS, BUDGETS)
def test_decoding_goes_before_prefill(requests: list[Request], budget: int) -> None:
    got = granted(requests, budget)

    unserved = [r for r in requests if r.decoding and got.get(r.session, 0) < r.tokens]
    assert not unserved or all(r.decoding for r in requests if r.session in got)


@settings(deadline=None)
@given(REQUESTS, BUDGETS)
def test_older_units_go_before_younger(requests: list[Request], budget: int) -> None:
    got = granted(requests, budget)

    for kind in (True, False):
        alike = [r for r in requests if r.decoding is kind]
        for older in alike:
            if got.get(older.session, 0) < older.tokens:
                assert not [r for r in alike if r.arrival > older.arrival and r.session in got]


@settings(deadline=None)
@given(REQUESTS, BUDGETS)
def test_order_of_the_requests_does_not_matter(requests: list[Request], budget: int) -> None:
    assert granted(requests, budget) == granted(requests[::-1], budget)


def test_long_prompt_is_split_over_ticks() -> None:
    request = Request(session=3, tokens=100, arrival=0.0, decoding=False)

    assert schedule([request], 40) == [Grant(3, 40)]


def test_budget_of_nothing_still_makes_progress() -> None:
    request = Request(session=3, tokens=100, arrival=0.0, decoding=False)

    assert schedule([request], 0) == [Grant(3, 1)]
