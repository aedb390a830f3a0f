"""The command that draws the subpackages of each package: `python -m docs.drawing.draw`, `make pictures`.

It writes the pictures in `docs/architecture` and the tables in `docs/architecture.md`.
"""

from typing import Final

from docs.drawing.layers import Subpackages, layers
from docs.drawing.picture import picture
from docs.drawing.source_tree import (
    PACKAGES,
    ROOT,
    SourceTree,
    repository,
)

DOCUMENT: Final = ROOT / "docs/architecture.md"
PICTURES: Final = "docs/architecture"


def files(tree: SourceTree) -> dict[str, str]:
    """Return the texts of the pictures and of the page, by their paths below the root."""
    text = DOCUMENT.read_text()
    found = {}
    for package in PACKAGES:
        subpackages, table = Subpackages(tree, package), layers(package)
        found[f"{PICTURES}/{package}.svg"] = picture(subpackages, table)
        before, mark, rest = text.partition(f"<!-- subpackages of {package} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        text = "".join([before, mark, _rows(subpackages, table), end, after])
    return {**found, str(DOCUMENT.relative_to(ROOT)): text}


def _rows(subpackages: Subpackages, table: list[list[str]]) -> str:
    lines = ["| subpackage | what is in it |", "|---|---|"]
    listed = [subpackage for line in table for subpackage in sorted(line)]
    lines += [
        f"| `{subpackages.label(subpackage)}` | {subpackages.sentence(subpackage)} |" for subpackage in listed
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Run from the command line."""
    for name, text in files(repository()).items():
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(text)
        print(name)


if __name__ == "__main__":
    main()
