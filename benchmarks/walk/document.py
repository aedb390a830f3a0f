"""The writer of the way of a unit into `docs/unit.md`."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.walk.conversation import Kind
from benchmarks.walk.way import Way

DOCUMENT: Final = Path(__file__).parents[2] / "docs/unit.md"
_SECTION: Final = re.compile(r"(<!-- benchmarks.walk -->\n).*?(<!-- end -->)", re.DOTALL)


class Leg(NamedTuple):
    """A part of the way, and the most modules that it should have; None if it may have any number."""

    name: str
    most: int | None
    way: Way

    @property
    def is_short(self) -> bool:
        """Whether it is as short as it should be."""
        return self.most is None or len(self.way.modules) <= self.most

    def __str__(self) -> str:
        goal = "" if self.most is None else f" (goal: at most {self.most})"
        return (
            f"{self.name}: {len(self.way.modules)} modules{goal}, "
            f"{self.way.calls:.0f} calls, {self.way.handovers:.0f} hand-overs"
        )


def section(found: Mapping[Kind, Sequence[Leg]]) -> str:
    """Return the ways in Markdown."""
    lines: list[str] = []
    for kind, legs in found.items():
        lines += [f"### A {kind} unit", ""]
        for leg in legs:
            lines.append(f"- **{leg}**\\")
            lines.append("  " + ", ".join(f"`{name}`" for name in leg.way.modules))
        lines.append("")
    return "\n".join(lines)


def write(found: Mapping[Kind, Sequence[Leg]], document: Path = DOCUMENT) -> None:
    """Put them between the marks of the page. Raises `ValueError` if it has none."""
    text, count = _SECTION.subn(lambda mark: f"{mark[1]}{section(found)}{mark[2]}", document.read_text())
    if count != 1:
        raise ValueError(f"{document} has no place for the way of a unit")
    document.write_text(text)
