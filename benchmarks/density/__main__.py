"""Simulation of MiniCPM-o 4.5 on assumed GPUs: `python -m benchmarks.density [--short]`.

Nothing is measured. Tick, scheduler, page pools, slots and admission are those of a worker. Workload W runs
under a simulated clock. The time of each step of the model is computed from a data sheet and assumptions.
Prints a table with all assumptions, each of which is an option. Without options it also writes the table to
`results/`.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

import torch

from benchmarks.density.card import CARDS, Assumptions
from benchmarks.density.cost import CardCost
from benchmarks.density.report import COLUMNS, report, row
from benchmarks.density.simulation import Plan, components, simulate
from benchmarks.density.weights import slots_of

RESULTS: Final = Path(__file__).parent / "results"
SESSIONS: Final = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
SHORT: Final = (1, 16, 64)
SEEDS: Final = 3


def main() -> int:
    """Simulate, print the table, and write it if there are no options."""
    given = _parser().parse_args()
    torch.set_num_threads(1)
    assumed = Assumptions(**{it.name: getattr(given, it.name) for it in fields(Assumptions)})
    sessions = given.sessions or (SHORT if given.short else SESSIONS)
    plan = Plan(
        0,
        0,
        seconds=10.0 if given.short else given.seconds,
        every_s=given.every,
        sees=given.video,
        context_limit=given.context_limit,
        jitter_s=assumed.jitter_ms / 1e3,
    )
    runs = 1 if given.short else given.runs
    parts = components(given.context_limit)
    cards = [CARDS[name] for name in given.cards or (["h200"] if given.short else CARDS)]
    rows = []
    for card in cards:
        cost = CardCost(card, assumed, given.vocoder_dtype)
        for what in plans(plan, cost, sessions, given.slots):
            outcomes = [simulate(parts, cost, replace(what, seed=seed + 1)) for seed in range(runs)]
            rows.append(row(card, outcomes))
            print(dict(zip(COLUMNS, rows[-1], strict=True)), file=sys.stderr, flush=True)
    found = report(rows, plan, cards, assumed, given.vocoder_dtype, runs)
    print(found.table())
    if len(sys.argv) == 1:
        found.write(given.short, RESULTS)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.density", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument(
        "--short", action="store_true", help="one card, three numbers of callers; writes no results"
    )
    parser.add_argument("--cards", nargs="+", choices=CARDS, help="cards (default all)")
    parser.add_argument("--sessions", nargs="+", type=int, metavar="N", help="callers of each simulation")
    parser.add_argument(
        "--slots", type=int, help="slots of the worker in the last row of each card (default: as many as fit)"
    )
    parser.add_argument("--seconds", type=float, default=Plan.seconds, help="measured seconds")
    parser.add_argument("--every", type=float, default=Plan.every_s, help="seconds between two callers")
    parser.add_argument("--runs", type=int, default=SEEDS, help="runs of each simulation, with other phases")
    parser.add_argument("--video", action="store_true", help="a frame of one slice in each unit")
    parser.add_argument("--context-limit", type=int, default=Plan.context_limit)
    parser.add_argument("--vocoder-dtype", default="float32", choices=["float32", "bfloat16"])
    for it in fields(Assumptions):
        parser.add_argument(
            f"--{it.name.replace('_', '-')}", type=float, default=it.default, help=it.metadata["meaning"]
        )
    return parser


def plans(plan: Plan, cost: CardCost, sessions: Sequence[int], slots: int | None) -> Iterator[Plan]:
    """Yield a plan for each number of callers, with a slot for each caller and without admission control.

    Then yield the largest number of callers with admission control: with a slot for each caller, and with
    `slots` slots, by default as many as memory holds.
    """
    for count in sessions:
        yield replace(plan, sessions=count, slots=count, admits=False)
    most = max(sessions)
    yield replace(plan, sessions=most, slots=most)
    fit = slots_of(cost.card, plan.context_limit, cost.vocoder_dtype)
    yield replace(plan, sessions=most, slots=fit if slots is None else slots)


if __name__ == "__main__":
    sys.exit(main())
