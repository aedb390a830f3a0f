"""Results: one table on the terminal, the same figures as JSON beside this file."""

import json
import math
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.load.processes import OTHER_CPU, TESTED_CPU

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Goal:
    """A ratio, and what it has to be."""

    name: str
    value: float
    bound: float
    at_most: bool = True

    @property
    def is_met(self) -> bool:
        """Whether the value keeps its bound."""
        return self.value <= self.bound if self.at_most else self.value >= self.bound

    def plain(self) -> dict[str, Any]:
        """As it stands in JSON."""
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
    """What one benchmark found."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Any, ...]]
    goals: Sequence[Goal] = ()
    note: str = ""
    where: str = f"tested on CPU {TESTED_CPU}, load on CPU {OTHER_CPU}"
    """What ran on which processor."""
    assumptions: Sequence[str] = ()
    """Assumptions of a simulation, one per line."""

    def table(self) -> str:
        """Markdown."""
        lines = [self.title, "", "| " + " | ".join(self.columns) + " |"]
        lines.append("|---" + "|---:" * (len(self.columns) - 1) + "|")
        lines += ["| " + " | ".join(_shown(value) for value in row) + " |" for row in self.rows]
        lines += [
            "",
            *(str(goal) for goal in self.goals),
            *([self.note] if self.note else []),
            *(f"- assumed: {it}" for it in self.assumptions),
            self.machine(),
            "",
        ]
        return "\n".join(lines)

    def machine(self) -> str:
        """Date, processor and interpreter."""
        cpuinfo = Path("/proc/cpuinfo")
        models = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = models[0].partition(":")[2].strip() if models else platform.machine()
        python = f"Python {platform.python_version()}"
        return f"{datetime.now(UTC):%Y-%m-%d}, {len(models)} x {model}, {python}, {self.where}"

    def write(self, is_short: bool, folder: Path | None = None) -> None:
        """`<folder>/<name>.json`; the folder is `results` if not given."""
        folder = folder or RESULTS
        folder.mkdir(exist_ok=True)
        (folder / f"{self.name}.json").write_text(self.json(is_short) + "\n")

    def json(self, is_short: bool) -> str:
        """Return all figures."""
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
