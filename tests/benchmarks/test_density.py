"""The simulation of crowds of MiniCPM-o: what holds whatever a card costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks.crowd.workload import SAYS
from benchmarks.density.card import CARDS, GIB, Assumptions
from benchmarks.density.cost import CardCost, Span
from benchmarks.density.report import COLUMNS, report, row
from benchmarks.density.simulation import Outcome, Plan, components, simulate
from benchmarks.density.weights import DTYPE, slots_of, weights
from inference_service.engine.batch.decoder import MOST_ROWS


@dataclass
class Steps:
    """Each step takes the same time, for nobody and for all."""

    seconds: float

    def __post_init__(self) -> None:
        self.rows: list[int] = []
        """Rows of each forward."""

    def hear(self, streams: int) -> float:
        return self.seconds

    def see(self, slices: int) -> float:
        return self.seconds

    def forward(self, spans: Sequence[Span]) -> float:
        self.rows.append(sum(it.rows for it in spans))
        return self.seconds

    def codes(self, spans: Sequence[Span]) -> float:
        return self.seconds

    def sound(self, voices: int, *, ends_turn: bool) -> float:
        return self.seconds


@pytest.fixture(scope="module")
def parts() -> Any:
    return components(2048)


def plan(sessions: int, slots: int, **others: Any) -> Plan:
    return Plan(sessions, slots, **{"seconds": 6.0, "every_s": 0.1, "context_limit": 2048} | others)


def test_fast_card_answers_every_unit_of_every_session_in_time(parts: Any) -> None:
    outcome = simulate(parts, Steps(0.002), plan(12, 12))
    assert (len(outcome.admitted), outcome.refused_slots, outcome.refused_time) == (12, 0, 0)
    assert outcome.late == outcome.latest == 0
    assert all(len(it.latencies) == it.units >= 5 for it in outcome.admitted), "nobody starves"
    assert 0 < outcome.quantile(0.5) <= outcome.quantile(0.99) < 1
    assert outcome.fairness <= 1


def test_slow_card_is_late_and_starves_no_session(parts: Any) -> None:
    outcome = simulate(parts, Steps(0.15), plan(12, 12, admits=False, seconds=12.0))
    assert outcome.late > 0.3
    assert outcome.busy > 0.9
    assert all(it.has_begun and it.latencies for it in outcome.admitted), "nobody starves"
    assert outcome.quantile(0.99) > 1

    outcome = simulate(parts, Steps(1.0), plan(12, 12, admits=False))
    assert any(not it.has_begun for it in outcome.admitted)
    assert all(it.units >= 5 for it in outcome.admitted)
    assert outcome.late == outcome.latest == 1


def test_admission_refuses_callers_beyond_the_slots_of_the_page_pool(parts: Any) -> None:
    outcome = simulate(parts, Steps(0.002), plan(6, 4))
    assert (len(outcome.admitted), outcome.refused_slots) == (4, 2)
    assert 0 < outcome.most_pages <= outcome.pages
    assert outcome.pages_left == 0
    outcome = simulate(parts, Steps(0.002), plan(2, 0))
    assert (outcome.admitted, outcome.refused_slots, outcome.latencies) == ([], 2, [])


def test_admission_without_compute_time_rejects_callers(parts: Any) -> None:
    refused = simulate(parts, Steps(0.12), plan(24, 24, every_s=1.0, seconds=4.0))
    assert refused.refused_time > 0
    assert refused.refused_time + len(refused.admitted) == 24


def test_forward_of_a_crowd_keeps_to_the_budget_of_the_engine(parts: Any) -> None:
    cost = Steps(0.05)
    simulate(parts, cost, plan(16, 16, sees=True, admits=False))
    assert SAYS < max(cost.rows) <= MOST_ROWS


def test_simulation_with_the_same_seed_gives_the_same_figures(parts: Any) -> None:
    cost = CardCost(CARDS["h200"])
    first, second = (simulate(parts, cost, plan(3, 3, jitter_s=0.005)) for _ in range(2))
    assert first.latencies == second.latencies
    assert first.ticks == second.ticks


def test_weights_and_rows_are_those_of_the_published_sizes() -> None:
    part = weights()
    assert part.language * DTYPE.itemsize == pytest.approx(15.1e9, rel=0.01)
    assert part.row_bytes == 144 * 1024


@pytest.mark.parametrize(("card", "conversations"), [("rtx4090", 0), ("l40s", 8), ("h100", 23), ("h200", 51)])
def test_slots_of_a_card_are_those_of_the_documentation(card: str, conversations: int) -> None:
    assert slots_of(CARDS[card], 8192, "float32") == conversations
    assert CARDS[card].free_bytes == CARDS[card].free_gib * GIB


def test_step_of_a_card_costs_more_for_more_sessions_and_on_a_slower_card() -> None:
    fast, slow = (CardCost(CARDS[it]) for it in ("h200", "rtx4090"))
    one, many = [Span(1, 100)], [Span(1, 100)] * 64
    for step in (CardCost.forward, CardCost.codes):
        assert 0 < step(fast, one) < step(fast, many) < step(slow, many)
    assert fast.forward(one) < fast.forward([Span(1, 8000)])
    assert fast.sound(1, ends_turn=False) < fast.sound(8, ends_turn=False) < fast.sound(8, ends_turn=True)
    assert fast.hear(1) < fast.hear(64)
    assert fast.see(1) < fast.see(64)


def test_report_is_marked_simulated_and_lists_assumptions() -> None:
    what, assumed = plan(4, 4), Assumptions(kernel_us=3.5)
    line = row(CARDS["h200"], [Outcome(what, pages=1)])
    found = report([line], what, [CARDS["h200"]], assumed, "float32", 1)
    assert len(line) == len(COLUMNS)
    assert "Simulated, not measured" in found.table()
    assert all(it in found.table() and it in found.json(is_short=True) for it in assumed.lines())
    assert any("kernel_us 3.5" in it for it in found.assumptions)
