"""Comparison with the reference's schedule: `python -m benchmarks.minicpmo [--short]`.

It prints a table of forwards and time per unit. Without `--short`, it writes the table to `results/` and into
`docs/models.md`.
"""

import argparse
import sys
from itertools import product

import torch

from benchmarks.minicpmo import models, report, schedules

SESSIONS = (1, 16)
UNITS = 4
ROUNDS = 2
"""The number of rounds, each with both schedules in turn; the fastest run of each schedule counts."""


def main() -> int:
    """Measure both models with one and with many sessions. Return 1 if the schedules differ in their text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="fewer units; writes no results")
    short = parser.parse_args().short
    torch.set_num_threads(1)
    rows = []
    for name, make in (("tiny", models.tiny), ("512 x 8", models.larger)):
        for sessions, listens in product(SESSIONS, (True, False)):
            units = 2 if short else UNITS
            rounds = [
                [
                    schedules.cost(kind(make(), sessions), sessions, units, listens=listens)
                    for kind in (schedules.Counting, schedules.Reference)
                ]
                for _ in range(ROUNDS)
            ]
            ours, theirs = (min(costs, key=lambda cost: cost.seconds) for costs in zip(*rounds, strict=True))
            rows.append(report.Row(name, sessions, "listening" if listens else "speaking", ours, theirs))
            print(rows[-1], flush=True)
    print(report.table(rows))
    if not short:
        report.write(rows)
    return 0 if all(row.says_the_same for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
