"""Benchmarks of the CPU kernels: `python -m benchmarks.kernels [--short] [name ...]`.

Each benchmark prints a table and writes it to `results/`; `--document` also writes `docs/performance.md`. The
exit code is 1 if a goal is missed.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch

from benchmarks.adapter import document
from benchmarks.kernels import decoder, linear, sound
from benchmarks.report import Report

MEASURES: Final[dict[str, Callable[[bool], Report]]] = {
    "linear": linear.measure,
    "decoder": decoder.measure,
    "sound": sound.measure,
}


def main() -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument(
        "names", nargs="*", choices=[*MEASURES, []], help=f"benchmarks (default all): {', '.join(MEASURES)}"
    )
    parser.add_argument("--short", action="store_true", help="fewer rounds")
    parser.add_argument("--document", action="store_true", help="write docs/performance.md too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    missed = []
    for name in given.names or MEASURES:
        report = MEASURES[name](given.short)
        print(report.table(), flush=True)
        report.write(given.short, Path(__file__).parent / "results")
        missed += [goal for goal in report.goals if not goal.is_met]
    if given.document:
        document.write()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
