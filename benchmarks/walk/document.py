"""The writer of the path of a unit into `docs/unit.md`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.walk.conversation import Kind
from benchmarks.walk.unit_path import UnitPath

DOCUMENT: Final = Path(__file__).parents[2] / "docs/unit.md"
_SECTION: Final = re.compile(r"(<!-- benchmarks.walk -->\n).*?(<!-- end -->)", re.DOTALL)


class Leg(NamedTuple):
    """A part of the path, and its goal: the largest number of modules; None without a goal."""

    name: str
    most: int | None
    path: UnitPath

    @property
    def is_short(self) -> bool:
        """Whether it meets its goal."""
        return self.most is None or len(self.path.modules) <= self.most

    def __str__(self) -> str:
        goal = "" if self.most is None else f" (goal: at most {self.most})"
        return (
            f"{self.name}: {len(self.path.modules)} modules{goal}, "
            f"{self.path.calls:.0f} calls, {self.path.handovers:.0f} hand-overs"
        )


def section(found: Mapping[Kind, Sequence[Leg]]) -> str:
    """Return the paths of each kind of unit in Markdown."""
    lines: list[str] = []
    for kind, legs in found.items():
        lines += [f"### A {kind} unit", ""]
        for leg in legs:
            lines.append(f"- **{leg}**\\")
            lines.append("  " + ", ".join(f"`{name}`" for name in leg.path.modules))
        lines.append("")
    return "\n".join(lines)


def write(found: Mapping[Kind, Sequence[Leg]], document: Path = DOCUMENT) -> None:
    """Write the paths between the marks of the page. Raises `ValueError` if the page has no marks."""
    text, count = _SECTION.subn(lambda mark: f"{mark[1]}{section(found)}{mark[2]}", document.read_text())
    if count != 1:
        raise ValueError(f"{document} has no marks for the path of a unit")
    document.write_text(text)
