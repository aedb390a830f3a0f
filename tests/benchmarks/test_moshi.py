"""The simulation of crowds of Moshi."""

import pytest

from benchmarks.moshi import tiny
from benchmarks.moshi.card import TickCost, window
from benchmarks.moshi.simulation import FRAME_S, simulate


def test_lone_conversation_waits_for_its_own_tick_alone_and_a_slow_engine_is_always_late() -> None:
    outcome = simulate(1, 10.0, lambda frames, rows: 0.01)
    assert outcome.quantile(0.99) == pytest.approx(0.01)
    assert outcome.late == 0
    assert len(outcome.latencies) == pytest.approx(10.0 / FRAME_S, abs=2)
    slow = simulate(4, 10.0, lambda frames, rows: 0.05 * frames)
    assert slow.late > 0.9
    assert slow.busy == pytest.approx(1.0, abs=0.02)


def test_prompts_of_new_conversations_are_read_in_portions_beside_frames() -> None:
    rows_of_ticks: list[int] = []

    def cost(frames: int, rows: int) -> float:
        rows_of_ticks.append(rows)
        return 0.004 + 0.0001 * rows

    outcome = simulate(16, 120.0, cost)

    assert max(rows_of_ticks) > 0
    assert outcome.late == 0


def test_cost_of_the_assumed_card_grows_with_the_crowd() -> None:
    cost = TickCost()
    ticks = [cost.seconds(count, 0, window()) for count in (1, 32, 64)]
    assert ticks == sorted(ticks)
    assert 0 < ticks[0] < FRAME_S
    assert 1 < cost.most_sessions < 64


def test_tiny_model_holds_the_conversations_that_are_measured() -> None:
    where = tiny.runtime(2)
    assert tiny.measure(where, 2, 3).tick_s > 0
