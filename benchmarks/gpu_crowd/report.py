"""The results as a table and as JSON."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.gpu_crowd.agreement import Agreement
from benchmarks.gpu_crowd.search import SessionKind, Trial

RESULTS: Final = Path(__file__).parent / "results/crowd.json"
GOAL: Final = 64
"""The goal in sessions of the full-size model on one GPU."""
HEAD: Final = (
    "| sessions are | most in time | memory holds | late | p50 ms | p99 ms | first answer p50 ms "
    "| text and speech tokens a speaking unit |\n|---|---:|---:|---:|---:|---:|---:|---:|"
)

PHASES: Final = "| a tick | calls | host ms | device ms |\n|---|---:|---:|---:|"


@dataclass(frozen=True)
class Row:
    """The results for one kind of session."""

    kind: SessionKind
    memory: int
    """The number of sessions that fit into memory."""
    trials: Sequence[Trial]
    """The largest one within the goal is the last, if there is one."""

    def parts(self) -> list[str]:
        """Return the lines of a table of the parts of a tick, for the largest trial within the goal."""
        if self.best is None:
            return []
        told = [
            (it.name, f"{it.calls:.2f}", f"{it.host_ms:.2f}", f"{it.device_ms:.2f}")
            for it in self.best.phases
        ]
        rows = [f"| {' | '.join(it)} |" for it in told]
        return [f"Of {self.best.sessions} sessions ({self.kind.name}):", "", PHASES, *rows, ""]

    @property
    def best(self) -> Trial | None:
        """The largest trial with less than 1 % late units; None if there is none."""
        return self.trials[-1] if self.trials and self.trials[-1].is_good else None

    def __str__(self) -> str:
        best = self.best
        if best is None:
            return f"| {self.kind.name} | 0 | {self.memory} | | | | | |"
        times = f"{best.p50_ms:.0f} | {best.p99_ms:.0f} | {best.first_p50_ms:.0f}"
        tokens = f"{best.text_tokens:.1f} and {best.speech_tokens:.1f}"
        held = f"{best.sessions} | {self.memory} | {100 * best.missed:.2f} %"
        return f"| {self.kind.name} | {held} | {times} | {tokens} |"


def report(name: str, device: torch.device, rows: Sequence[Row], found: Sequence[Agreement]) -> str:
    """Return the tables in Markdown and the comparison with the CPU."""
    lines = [f"{name}, random weights, workload W in real time; {machine(device)}.", "", HEAD]
    lines += [*map(str, rows), "", *(line for row in rows for line in row.parts())]
    for it in found:
        verdict = "met" if it.holds else "MISSED"
        lines.append(
            f"- {it.part}, against the CPU in float32: {it.difference:.2g} of {it.tolerance} ({verdict})"
        )
    return "\n".join(lines)


def figures(
    name: str, device: torch.device, rows: Sequence[Row], found: Sequence[Agreement]
) -> dict[str, Any]:
    """Return the results as JSON objects."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "model": name,
        "machine": machine(device),
        "goal": GOAL,
        "rows": [
            {"sessions_are": row.kind.name, "memory": row.memory, "trials": [asdict(it) for it in row.trials]}
            for row in rows
        ],
        "agreement": [asdict(it) for it in found],
    }


def write(told: dict[str, Any]) -> None:
    """Write `results/crowd.json`."""
    RESULTS.write_text(json.dumps(told, indent=2) + "\n")


def machine(device: torch.device) -> str:
    """Return the names of the device and of the versions of Python and torch."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"
    return f"{where}, Python {platform.python_version()}, torch {torch.__version__}"
