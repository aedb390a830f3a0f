"""The table of figures, with one attack on each line."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.neighbours.attacks import ATTACKS
from benchmarks.neighbours.measure import ADAPTER_CPU, NEIGHBOURS, WORKER_CPU, Outcome
from benchmarks.report import Goal, Report

RESULTS: Final = Path(__file__).parent / "results"
NAME: Final = "neighbours"

MOST_TIMES: Final = 1.5
LEAST_KEPT: Final = 0.98
_LISTED: Final = 4
"""The number of outcomes in a row of the table."""

COLUMNS: Final = (
    "attack",
    "p99 quiet, ms",
    "p99 attacked, ms",
    "times",
    "goodput quiet",
    "goodput attacked",
    "kept",
    "adapter, cores",
    "worker, cores",
    "replies to attackers",
)


def is_met(outcome: Outcome) -> bool:
    """Return whether latency and goodput meet the goals and no process ended."""
    if outcome.attack.is_control:
        return True
    return outcome.times <= MOST_TIMES and outcome.kept >= LEAST_KEPT and not outcome.ended


def row(outcome: Outcome) -> tuple[object, ...]:
    """Return a line of the table."""
    quiet, attacked = outcome.quiet, outcome.attacked
    return (
        outcome.attack.name,
        quiet.p99_ms,
        attacked.p99_ms,
        outcome.times,
        quiet.goodput,
        attacked.goodput,
        outcome.kept,
        _extra(attacked.adapter_s, quiet.adapter_s, attacked.seconds),
        _extra(attacked.worker_s, quiet.worker_s, attacked.seconds),
        summary(outcome),
    )


def summary(outcome: Outcome) -> str:
    """Return the most frequent outcomes for attackers, and problems in capitals."""
    parts = [f"{name} x {count}" for name, count in outcome.tally.most_common(_LISTED)]
    if not outcome.took_place:
        parts.append("NOT WHAT WAS EXPECTED")
    parts += [f"THE {name.upper()} ENDED" for name in outcome.ended]
    return ", ".join(parts)


def report(outcomes: Sequence[Outcome], command: str) -> Report:
    """Return the report of all outcomes. `command` is the command that measured them."""
    judged = [outcome for outcome in outcomes if not outcome.attack.is_control] or outcomes
    slowest = max(judged, key=lambda one: one.times if math.isfinite(one.times) else math.inf)
    poorest = min(judged, key=lambda one: one.kept if math.isfinite(one.kept) else -math.inf)
    return Report(
        NAME,
        f"Units of {NEIGHBOURS} neighbours with and without an attack: `{command}`",
        COLUMNS,
        [row(outcome) for outcome in outcomes],
        _goals(slowest.attack.name, slowest.times, poorest.attack.name, poorest.kept),
        where=f"worker on CPU {WORKER_CPU}, adapter on CPU {ADAPTER_CPU}",
    )


def renew(outcomes: Sequence[Outcome], command: str, folder: Path = RESULTS) -> None:
    """Replace the rows of these attacks in the results of a complete run; add `command` to the title."""
    file = folder / f"{NAME}.json"
    figures = json.loads(file.read_text())
    again = json.loads(report(outcomes, command).json(is_short=False))["rows"]
    new = {line["attack"]: line for line in again}
    figures["rows"] = rows = [new.get(line["attack"], line) for line in figures["rows"]]
    figures["title"] += f"; again: `{command}`"
    controls = {attack.name for attack in ATTACKS.values() if attack.is_control}
    judged = [line for line in rows if line["attack"] not in controls]
    slowest = max(judged, key=lambda line: math.inf if line["times"] is None else line["times"])
    poorest = min(judged, key=lambda line: -math.inf if line["kept"] is None else line["kept"])
    goals = _goals(slowest["attack"], slowest["times"], poorest["attack"], poorest["kept"])
    figures["goals"] = [goal.plain() for goal in goals]
    file.write_text(json.dumps(figures, indent=1) + "\n")


def _goals(slowest: str, times: float, poorest: str, kept: float) -> tuple[Goal, Goal]:
    return (
        Goal(f"worst p99 under attack over quiet ({slowest})", times, MOST_TIMES),
        Goal(f"worst share of goodput kept ({poorest})", kept, LEAST_KEPT, at_most=False),
    )


def _extra(attacked_s: float, quiet_s: float, seconds: float) -> str:
    """Return the cores in use under attack, and the additional ones relative to the quiet windows."""
    return f"{attacked_s / seconds:.2f} ({(attacked_s - quiet_s) / seconds:+.2f})"
