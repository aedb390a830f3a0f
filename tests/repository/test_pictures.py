"""The pictures and tables of `docs/architecture.md` are those of the imports and the docstrings."""

from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.drawing.draw import DOCUMENT, files
from docs.drawing.layers import Subpackages
from docs.drawing.layout import GAP, laid_out, transitive_reduction
from docs.drawing.picture import picture
from docs.drawing.source_tree import ROOT, SourceTree, repository

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return files(repository())


def test_checked_in_pictures_are_those_of_the_imports_and_shown_by_the_page(drawn: dict[str, str]) -> None:
    stale = [name for name, text in drawn.items() if (ROOT / name).read_text() != text]
    assert stale == [], "draw them again with `make pictures` (python -m docs.drawing.draw)"
    for name in drawn.keys() - {str(DOCUMENT.relative_to(ROOT))}:
        assert f"]({Path(name).relative_to('docs')})" in DOCUMENT.read_text()


def test_all_that_is_drawn_lies_on_a_light_page(drawn: dict[str, str]) -> None:
    """So that it is read on a dark one as well; letters are counted with 8.5 px, wider than any of 14."""
    for name in drawn:
        if name.endswith(".svg"):
            svg = ElementTree.fromstring(drawn[name])
            _, _, width, height = map(float, svg.attrib["viewBox"].split())
            page, *boxes = svg.iter(f"{SVG}rect")
            assert (float(page.attrib["width"]), float(page.attrib["height"])) == (width, height)
            for box, label in zip(boxes, svg.iter(f"{SVG}text"), strict=False):
                left, subpackage = float(box.attrib["x"]), float(box.attrib["width"])
                assert left >= 0
                assert left + subpackage <= width
                assert len(label.text or "") * 8.5 <= subpackage


def test_an_import_changes_the_picture(tmp_path: Path) -> None:
    def drawn() -> str:
        return picture(Subpackages(SourceTree({"box": tmp_path}), "box"), [["upper"], ["lower"]])

    (tmp_path / "__init__.py").write_text('"""A house."""')
    for subpackage in ("upper", "lower"):
        (tmp_path / subpackage).mkdir()
        (tmp_path / subpackage / "__init__.py").write_text(f'"""The {subpackage} subpackage & more."""')
        (tmp_path / subpackage / "one.py").write_text("")
    assert drawn().count('class="arrow"') == 0
    (tmp_path / "upper/one.py").write_text("import box.lower.one")
    assert drawn().count('class="arrow"') == 1
    titles = [it.text for it in ElementTree.fromstring(drawn()).iter(f"{SVG}title")]
    assert titles == ["The lower subpackage & more.", "The upper subpackage & more."]


def test_an_arrow_that_a_longer_way_implies_is_left_out() -> None:
    graph = {"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set[str]()}
    assert transitive_reduction(graph) == {"a": {"b"}, "b": {"c"}, "c": {"d"}, "d": set()}


ROWS = [["a", "b", "c"], ["d", "e"], ["f", "g", "h", "i"]]
WIDTHS = {name: 40.0 + 10 * i for i, name in enumerate("abcdefghi")}
ACROSS = {"a": {"e", "i"}, "b": {"d"}, "c": {"d", "f"}, "d": {"i"}, "e": {"f", "g"}}


def test_boxes_keep_their_rows_and_do_not_touch() -> None:
    layout = laid_out(ACROSS, ROWS, WIDTHS)
    assert layout == laid_out(ACROSS, ROWS, WIDTHS), "it is the same every time"
    for number, row in enumerate(ROWS):
        assert {layout.boxes[name][1] for name in row} == {number}
        for left, right in pairwise(sorted(row, key=lambda name: layout.boxes[name][0])):
            distance = layout.boxes[right][0] - layout.boxes[left][0]
            assert distance >= (WIDTHS[left] + WIDTHS[right]) / 2 + GAP / 2


def test_arrows_pass_beside_the_boxes_of_rows_between() -> None:
    layout = laid_out(ACROSS, ROWS, WIDTHS)
    assert layout.arrows.keys() == {(start, end) for start, ends in ACROSS.items() for end in ends}
    for (start, end), way in layout.arrows.items():
        assert [way[0], way[-1]] == [layout.boxes[start], layout.boxes[end]]
        for x, row in way[1:-1]:
            assert all(abs(x - layout.boxes[name][0]) > WIDTHS[name] / 2 for name in ROWS[row])
