"""Puts the figures of `results/cost.json` between the marks in `docs/observability.md`."""

import json
from pathlib import Path
from typing import Final

from benchmarks.adapter.document import section
from benchmarks.tracing.cost import RESULTS

DOCUMENT: Final = Path(__file__).parents[2] / "docs/observability.md"
BEGIN: Final = "<!-- cost: written by benchmarks.tracing -->"
END: Final = "<!-- end of cost -->"


def write() -> None:
    """Write the section anew."""
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    table = section(json.loads((RESULTS / "cost.json").read_text()))
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}")
