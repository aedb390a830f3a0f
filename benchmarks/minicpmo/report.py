"""The results as a table, as JSON, and in `docs/models.md`."""

import json
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.minicpmo.schedules import Cost
from benchmarks.report import processor, put, table

RESULTS: Final = Path(__file__).parent / "results/schedules.json"
DOCUMENT: Final = Path(__file__).parents[2] / "docs/models.md"
BEGIN: Final = "<!-- schedules: written by benchmarks.minicpmo -->"
END: Final = "<!-- end of schedules -->"
PARTS: Final = ("language model", "speech head", "ear", "vocoder")


@dataclass(frozen=True)
class Row:
    """One model with one number of sessions and one kind of unit."""

    model: str
    sessions: int
    units: str
    """The kind of unit: listening or speaking."""
    ours: Cost
    theirs: Cost

    @property
    def says_the_same(self) -> bool:
        """Whether both schedules generated the same text tokens."""
        return self.ours.said == self.theirs.said

    def forwards(self, part: str) -> str:
        """Return the forwards of `part`, reference over engine; empty if one of them has none."""
        ours, theirs = (cost.forwards.get(part) for cost in (self.ours, self.theirs))
        return f"{theirs / ours:.2f}" if ours and theirs else ""

    @property
    def time(self) -> float:
        """The CPU time, reference over engine."""
        return self.theirs.seconds / self.ours.seconds

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        ratios = map(self.forwards, PARTS)
        return (self.model, str(self.sessions), self.units, *ratios, f"{self.time:.2f}")

    def figures(self) -> dict[str, Any]:
        """Return the row as JSON objects."""
        both = {"ours": self.ours, "reference": self.theirs}
        costs = {
            name: {"forwards_per_unit": cost.forwards, "cpu_seconds_per_unit": cost.seconds}
            for name, cost in both.items()
        }
        return {
            "model": self.model,
            "sessions": self.sessions,
            "units": self.units,
            **costs,
            "time_ratio": self.time,
        }


def ratios(rows: list[Row]) -> str:
    """Return a Markdown table of the ratios, reference over engine."""
    return table(("model", "sessions", "units", *PARTS, "time"), [row.cells() for row in rows])


def write(rows: list[Row]) -> None:
    """Write the results as JSON, and the table between the marks of the page."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    machine = f"{processor()}, one thread, {versions}"
    date = datetime.now(UTC).date().isoformat()
    figures = {"date": date, "machine": machine, "rows": [row.figures() for row in rows]}
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    put(f"{ratios(rows)}\n\n`python -m benchmarks.minicpmo`, {date}, {machine}.", DOCUMENT, BEGIN, END)
