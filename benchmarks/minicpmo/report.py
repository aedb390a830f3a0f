"""The figures as a table, as JSON, and in `docs/models.md`."""

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
    """One model in one crowd."""

    model: str
    sessions: int
    units: str
    """The kind of unit: listening or speaking."""
    ours: Cost
    theirs: Cost

    @property
    def says_the_same(self) -> bool:
        """Whether both schedules came to the same words."""
        return self.ours.said == self.theirs.said

    def forwards(self, part: str) -> str:
        """Return the number of forwards of the reference's schedule as a multiple; empty without any."""
        ours, theirs = (cost.forwards.get(part) for cost in (self.ours, self.theirs))
        return f"{theirs / ours:.2f}" if ours and theirs else ""

    @property
    def time(self) -> float:
        """The time of the reference's schedule as a multiple."""
        return self.theirs.seconds / self.ours.seconds

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table."""
        ratios = map(self.forwards, PARTS)
        return (self.model, str(self.sessions), self.units, *ratios, f"{self.time:.2f}")

    def figures(self) -> dict[str, Any]:
        """For a program."""
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
    """Return a Markdown table: the reference's schedule as multiples of ours."""
    return table(("model", "sessions", "units", *PARTS, "time"), [row.cells() for row in rows])


def write(rows: list[Row]) -> None:
    """Into the results, and between the marks of the document."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    machine = f"{processor()}, one thread, {versions}"
    date = datetime.now(UTC).date().isoformat()
    figures = {"date": date, "machine": machine, "rows": [row.figures() for row in rows]}
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    put(f"{ratios(rows)}\n\n`python -m benchmarks.minicpmo`, {date}, {machine}.", DOCUMENT, BEGIN, END)
