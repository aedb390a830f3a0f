"""Reports of benchmarks: a table on the terminal, the figures as JSON, and a section of a page."""

import json
import math
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.load.processes import OTHER_CPU, TESTED_CPU


@dataclass(frozen=True)
class Goal:
    """A measured value and its bound."""

    name: str
    value: float
    bound: float
    at_most: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the value is within the bound."""
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def plain(self) -> dict[str, Any]:
        """Return the goal as JSON objects."""
        return {
            "name": self.name,
            "value": _plain(self.value),
            "bound": self.bound,
            "at_most": self.at_most,
            "met": self.is_met,
        }

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{self.name}: {self.value:.2f} ({sign} {self.bound:g}: {'met' if self.is_met else 'MISSED'})"


@dataclass(frozen=True)
class Report:
    """The results of one benchmark."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    goals: Sequence[Goal] = ()
    note: str = ""
    where: str = f"tested on CPU {TESTED_CPU}, load on CPU {OTHER_CPU}"
    """The processors of the tested process and of the load."""
    assumptions: Sequence[str] = ()
    """Assumptions of a simulation, one per line."""

    def table(self) -> str:
        """Return the title, the table, the goals and the machine, in Markdown."""
        lines = [
            self.title,
            "",
            table(self.columns, [[_shown(value) for value in row] for row in self.rows]),
            "",
            *(str(goal) for goal in self.goals),
            *([self.note] if self.note else []),
            *(f"- assumed: {it}" for it in self.assumptions),
            self.machine(),
            "",
        ]
        return "\n".join(lines)

    def machine(self) -> str:
        """Return the date, the processor, the interpreter and `where`."""
        python = f"Python {platform.python_version()}"
        return f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} x {processor()}, {python}, {self.where}"

    def write(self, is_short: bool, folder: Path) -> None:
        """Write `<folder>/<name>.json`."""
        folder.mkdir(exist_ok=True)
        (folder / f"{self.name}.json").write_text(self.json(is_short) + "\n")

    def json(self, is_short: bool) -> str:
        """Return all figures as JSON; an infinite or missing value is null."""
        figures = {
            "benchmark": self.name,
            "title": self.title,
            "short": is_short,
            "machine": self.machine(),
            "rows": [dict(zip(self.columns, map(_plain, row), strict=True)) for row in self.rows],
            "goals": [goal.plain() for goal in self.goals],
        }
        if self.assumptions:
            figures["assumptions"] = list(self.assumptions)
        return json.dumps(figures, indent=1)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table; all columns but the first are aligned to the right."""
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows])


def section(figures: dict[str, Any]) -> str:
    """Return the table of a `results` file, its goals and its machine, in Markdown."""
    columns = list(figures["rows"][0])
    lines = [
        table(columns, [[_brief(row[column]) for column in columns] for row in figures["rows"]]),
        "",
        *(_goal(goal) for goal in figures["goals"]),
        "",
        f"{figures['title']}. {figures['machine']}{', short' if figures['short'] else ''}.",
    ]
    return "\n".join(lines)


def put(text: str, page: Path, begin: str, end: str) -> None:
    """Write a section between two marks of a page. Raises `ValueError` unless it has each mark once."""
    before, *rest = page.read_text().split(begin)
    after = rest[0].split(end) if len(rest) == 1 else []
    if len(after) != 2:
        raise ValueError(f"{page} must have {begin!r} once and {end!r} once after it")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after[1]}")


def processor() -> str:
    """Return the name of this machine's processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3) if math.isfinite(value) else None
    return value


def _shown(value: Any) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            return ""
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}"
    return str(value)


def _goal(goal: dict[str, Any]) -> str:
    side = "at most" if goal["at_most"] else "at least"
    state = "met" if goal["met"] else "missed"
    return (
        f"- {goal['name']}: **{_brief(goal['value']) or 'never'}** (goal: {side} {goal['bound']:g}, {state})"
    )


def _brief(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)
