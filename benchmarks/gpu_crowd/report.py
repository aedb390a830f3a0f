"""The figures as a table, as JSON, and in `docs/performance.md`."""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.gpu_crowd.agreement import Agreement
from benchmarks.gpu_crowd.search import Trial, Way

RESULTS: Final = Path(__file__).parent / "results/crowd.json"
GOAL: Final = 64
"""Sessions of the published size on one GPU."""
HEAD: Final = (
    "| sessions are | most in time | memory holds | late | p50 ms | p99 ms | first answer p50 ms "
    "| text and speech tokens a speaking unit |\n|---|---:|---:|---:|---:|---:|---:|---:|"
)

PHASES: Final = "| a tick | calls | host ms | device ms |\n|---|---:|---:|---:|"


@dataclass(frozen=True)
class Row:
    """The results for one kind of session."""

    way: Way
    memory: int
    """Sessions that memory holds."""
    trials: Sequence[Trial]
    """The best good one last."""

    def parts(self) -> list[str]:
        """Return the times of each part of a tick of the largest crowd, line by line."""
        if self.best is None:
            return []
        told = [
            (it.name, f"{it.calls:.2f}", f"{it.host_ms:.2f}", f"{it.device_ms:.2f}")
            for it in self.best.phases
        ]
        rows = [f"| {' | '.join(it)} |" for it in told]
        return [f"Of {self.best.sessions} sessions ({self.way.name}):", "", PHASES, *rows, ""]

    @property
    def best(self) -> Trial | None:
        """The largest crowd that was in time."""
        return self.trials[-1] if self.trials and self.trials[-1].is_good else None

    def __str__(self) -> str:
        best = self.best
        if best is None:
            return f"| {self.way.name} | 0 | {self.memory} | | | | | |"
        times = f"{best.p50_ms:.0f} | {best.p99_ms:.0f} | {best.first_p50_ms:.0f}"
        tokens = f"{best.text_tokens:.1f} and {best.speech_tokens:.1f}"
        held = f"{best.sessions} | {self.memory} | {100 * best.missed:.2f} %"
        return f"| {self.way.name} | {held} | {times} | {tokens} |"


def report(name: str, device: torch.device, rows: Sequence[Row], found: Sequence[Agreement]) -> str:
    """For people."""
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
    """For a program."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "model": name,
        "machine": machine(device),
        "goal": GOAL,
        "rows": [
            {"sessions_are": row.way.name, "memory": row.memory, "trials": [asdict(it) for it in row.trials]}
            for row in rows
        ],
        "agreement": [asdict(it) for it in found],
    }


def write(told: dict[str, Any]) -> None:
    """Into the results."""
    RESULTS.write_text(json.dumps(told, indent=2) + "\n")


def machine(device: torch.device) -> str:
    """Return the device and what runs on it."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU {platform.machine()}"
    return f"{where}, Python {platform.python_version()}, torch {torch.__version__}"
