"""The figures as tables, as JSON, and in `docs/models.md`."""

import json
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import torch

from benchmarks.minicpmo.report import processor
from benchmarks.sampling.costs import Row, Step
from benchmarks.sampling.trade import Trade

RESULTS: Final = Path(__file__).parent / "results/sampling.json"
DOCUMENT: Final = Path(__file__).parents[2] / "docs/models.md"
BEGIN: Final = "<!-- draws: written by benchmarks.sampling -->"
END: Final = "<!-- end of draws -->"


def tables(rows: list[Row], steps: list[Step], trades: list[Trade]) -> str:
    """In Markdown."""
    draws = [
        "| draw | of | sessions | ours, us | one by one, us | times |",
        "|---|---:|---:|---:|---:|---:|",
        *(
            f"| {row.kind} | {row.vocabulary:,} | {row.sessions} | {row.ours:.0f} | {row.theirs:.0f} "
            f"| {row.times:.1f} |"
            for row in rows
        ),
    ]
    speech = [
        "| codes at once | sessions | a code, us | a step, ms |",
        "|---:|---:|---:|---:|",
        *(f"| {s.at_once} | {s.sessions} | {s.code_us:.0f} | {s.step_ms:.1f} |" for s in steps),
    ]
    crowd = [
        "| codes at once | sessions | a unit, ms | p50, ms | p99, ms | p99 of a tick, ms |",
        "|---:|---:|---:|---:|---:|---:|",
        *(
            f"| {t.at_once} | {t.sessions} | {t.unit_ms:.0f} "
            f"| {t.p50_ms:.0f} | {t.p99_ms:.0f} | {t.tick_ms:.0f} |"
            for t in trades
        ),
    ]
    return "\n".join([*draws, "", *speech, "", *crowd])


def write(rows: list[Row], steps: list[Step], trades: list[Trade]) -> None:
    """Into the results, and between the marks of the document."""
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
    before, rest = DOCUMENT.read_text().split(BEGIN)
    _, after = rest.split(END)
    section = f"{tables(rows, steps, trades)}\n\n`python -m benchmarks.sampling`, {date}, {machine}."
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{section}\n\n{END}{after}")
