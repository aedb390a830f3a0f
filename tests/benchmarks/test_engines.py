"""The benchmark of both engines: what it makes of answers, and where it writes."""

from pathlib import Path

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


def test_table_is_written_between_the_marks_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, whole = tmp_path / "engines.md", engines.DOCUMENT.read_text()
    page.write_text(whole)
    monkeypatch.setattr(engines, "DOCUMENT", page)
    for text in ("one", "two"):
        engines.write(text)
    before, after = whole.partition(engines.BEGIN)[0], whole.partition(engines.END)[2]
    assert page.read_text() == f"{before}{engines.BEGIN}\n\ntwo\n\n{engines.END}{after}"
    assert before
    assert after
