"""The tables of docs/protocol/states.md, which tests of the dialects compare with the code."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/protocol/states.md"


def read_states(title: str) -> dict[tuple[str, str], str]:
    """Return the text of each cell of the table in the section `title`, by event and state."""
    section = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (text,) = (it.partition("\n")[2] for it in section if it.partition("\n")[0] == title)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {
        (row[0].replace("`", ""), state): cell
        for row in rows
        for state, cell in zip(head[1:], row[1:], strict=True)
    }


def names_in(cell: str) -> list[str]:
    """The names of events and errors in a cell."""
    return re.findall(r"`([^`]+)`", cell)


def state_after(cell: str, state: str) -> str:
    """The state that follows `state` by a cell."""
    says = cell.partition(",")[0]
    return state if says.startswith("`") else says
