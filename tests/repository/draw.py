"""Draws the rooms of each package into `docs/architecture.md`: `python -m tests.repository.draw`.

`make pictures` does the same.
"""

from typing import Final

from tests.repository.layers import Rooms, layers
from tests.repository.picture import picture
from tests.repository.source_tree import PACKAGES, ROOT, SourceTree, repository

DOCUMENT: Final = ROOT / "docs/architecture.md"
PICTURES: Final = "docs/architecture"


def files(tree: SourceTree) -> dict[str, str]:
    """The pictures and the page, by their paths below the root."""
    text = DOCUMENT.read_text()
    found = {}
    for package in PACKAGES:
        rooms, table = Rooms(tree, package), layers(package)
        found[f"{PICTURES}/{package}.svg"] = picture(rooms, table)
        before, mark, rest = text.partition(f"<!-- rooms of {package} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        text = "".join([before, mark, _rows(rooms, table), end, after])
    return {**found, str(DOCUMENT.relative_to(ROOT)): text}


def _rows(rooms: Rooms, table: list[list[str]]) -> str:
    lines = ["| room | what is in it |", "|---|---|"]
    listed = [room for line in table for room in sorted(line)]
    lines += [f"| `{rooms.label(room)}` | {rooms.sentence(room)} |" for room in listed]
    return "\n".join([*lines, ""])


def main() -> None:
    """Runs from the command line."""
    for name, text in files(repository()).items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text)
        print(name)


if __name__ == "__main__":
    main()
