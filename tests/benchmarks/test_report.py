"""Sections of pages that benchmarks write."""

from pathlib import Path

import pytest

from benchmarks.adapter import document
from benchmarks.report import put, table

BEGIN, END = "<!-- figures -->", "<!-- end of figures -->"


def test_section_is_replaced_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n\n{BEGIN}\n{END}\n\nafter\n")
    for text in ("one", "two"):
        put(text, page, BEGIN, END)
    assert page.read_text() == f"before\n\n{BEGIN}\n\ntwo\n\n{END}\n\nafter\n"


@pytest.mark.parametrize("text", ["nothing", BEGIN, END, f"{END}{BEGIN}", 2 * f"{BEGIN}{END}"])
def test_page_without_one_place_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match="must have"):
        put("figures", page, BEGIN, END)
    assert page.read_text() == text


def test_table_aligns_figures_to_the_right() -> None:
    assert table(("what", "us"), [("a", 1)]) == "| what | us |\n|---|---:|\n| a | 1 |"


def test_page_of_performance_has_the_figures_of_the_results_files() -> None:
    assert document.DOCUMENT.read_text() == document.page()
