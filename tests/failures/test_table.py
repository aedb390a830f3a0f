"""docs/failures.md says what the tests show, and names tests that exist."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.failures.faults import FAULTS, Fault
from tests.failures.scene import NAMES, End
from tests.failures.shared_faults import SHARED_FAULTS
from tests.failures.visits import STATES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/failures.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/.]+)::(\w+)`", PAGE)))


def rows(first: str, section: str = "") -> list[list[str]]:
    """The cells below the table whose head begins with `first`, in the section with this title."""
    text = PAGE[PAGE.index(f"## {section}") :]
    lines = text[text.index(first) :].splitlines()
    table = lines[2 : next((n for n, line in enumerate(lines) if not line.startswith("|")), None)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


def ends(fault: Fault) -> list[End]:
    return [*(fault.ends[state] for state in STATES), fault.near]


@pytest.mark.parametrize(
    ("section", "faults"), [("Processes", FAULTS), ("A shared queue", SHARED_FAULTS)], ids=["alone", "shared"]
)
def test_the_page_has_every_fault_and_its_cells(section: str, faults: Sequence[Fault]) -> None:
    assert rows("| fault | victim |", section) == [
        [fault.what, fault.victim, *(NAMES[end] for end in ends(fault)), f"{fault.within_s:g} s"]
        for fault in faults
    ]


def test_every_end_is_explained() -> None:
    assert {end for end, _ in rows("| end |")} == {*NAMES.values()}


def test_every_row_of_the_rest_names_its_tests() -> None:
    assert [fault for fault, _, tests in rows("| fault | what happens |") if "::test_" not in tests] == []


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_the_page_names_is_there(file: str, name: str) -> None:
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
