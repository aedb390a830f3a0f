"""The writer of `results/cost.json` as a section of `docs/observability.md`."""

import json
from pathlib import Path
from typing import Final

from benchmarks.report import put, section
from benchmarks.tracing.cost import RESULTS

DOCUMENT: Final = Path(__file__).parents[2] / "docs/observability.md"
BEGIN: Final = "<!-- cost: written by benchmarks.tracing -->"
END: Final = "<!-- end of cost -->"


def write() -> None:
    """Replace the section between the marks."""
    put(section(json.loads((RESULTS / "cost.json").read_text())), DOCUMENT, BEGIN, END)
