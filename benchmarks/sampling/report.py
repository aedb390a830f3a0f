"""The results as tables, as JSON, and in `docs/models.md`."""

import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch

from benchmarks.report import processor, put, table
from benchmarks.sampling.costs import Row, Step
from benchmarks.sampling.trade import Trade

RESULTS: Final = Path(__file__).parent / "results/sampling.json"
DOCUMENT: Final = Path(__file__).parents[2] / "docs/models.md"
BEGIN: Final = "<!-- draws: written by benchmarks.sampling -->"
END: Final = "<!-- end of draws -->"


def tables(rows: list[Row], steps: list[Step], trades: list[Trade]) -> str:
    """Return the tables in Markdown."""
    draws = table(
        ("draw", "of", "sessions", "ours, us", "one by one, us", "times"),
        [
            (
                it.kind,
                f"{it.vocabulary:,}",
                it.sessions,
                f"{it.ours:.0f}",
                f"{it.theirs:.0f}",
                f"{it.times:.1f}",
            )
            for it in rows
        ],
    )
    speech = table(
        ("codes at once", "sessions", "a code, us", "a step, ms"),
        [(it.at_once, it.sessions, f"{it.code_us:.0f}", f"{it.step_ms:.1f}") for it in steps],
    )
    crowd = table(
        ("codes at once", "sessions", "a unit, ms", "p50, ms", "p99, ms", "p99 of a tick, ms"),
        [
            (it.at_once, it.sessions, *(f"{ms:.0f}" for ms in (it.unit_ms, it.p50_ms, it.p99_ms, it.tick_ms)))
            for it in trades
        ],
    )
    return "\n\n".join((draws, speech, crowd))


def write(rows: list[Row], steps: list[Step], trades: list[Trade]) -> None:
    """Write the results as JSON, and the tables between the marks of the page."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    machine, date = f"{processor()}, one thread, {versions}", datetime.now(UTC).date().isoformat()
    figures = {
        "date": date,
        "machine": machine,
        "draws": [asdict(row) for row in rows],
        "speech": [asdict(step) for step in steps],
        "crowd": [asdict(trade) for trade in trades],
    }
    RESULTS.write_text(json.dumps(figures, indent=2) + "\n")
    section = f"{tables(rows, steps, trades)}\n\n`python -m benchmarks.sampling`, {date}, {machine}."
    put(section, DOCUMENT, BEGIN, END)
