"""The benchmark of both engines: what it makes of answers, and where it writes."""

import pytest

from benchmarks.engines import __main__ as engines
from benchmarks.engines.chats import Answer


def figures(first_s: float, tokens: int) -> engines.Figures:
    found = engines.Figures()
    found.start_s, found.memory_mb = [2.0], [100.0]
    found.answers = {
        callers: [[Answer(1.0, 1.0 + first_s, 3.0, tokens) for _ in range(callers)]]
        for callers in engines.CALLERS
    }
    found.beside = [Answer(1.0, 1.0 + 4 * first_s, 3.0, tokens)]
    return found


def test_rows_are_quantiles_rates_and_their_ratios() -> None:
    table = {
        row[0]: row[1:] for row in engines.rows({"antiphon": figures(0.1, 20), "vllm": figures(0.2, 10)})
    }
    assert table["1 caller: first text, ms, p50"] == pytest.approx((100, 200, 0.5))
    assert table["8 at once: tokens/s"] == pytest.approx((80, 40, 2))
    [times] = [row for name, row in table.items() if name.endswith("times that alone")]
    assert times == pytest.approx((4, 4, 1))


def test_page_has_one_place_for_the_table() -> None:
    text = engines.DOCUMENT.read_text()
    assert text.count(engines.BEGIN) == text.count(engines.END) == 1
