"""Benchmarks of the shared queue: `python -m benchmarks.dispatch [--short] [name ...]`.

Each benchmark prints a table and writes it to `results/`. `scale` measures nothing: it computes tables from
the results. `--document` also writes `docs/performance.md` and `docs/scale.md`. The exit code is 1 if a goal
is missed.
"""

import argparse
import asyncio
import os
import sys
from importlib import import_module

from benchmarks.adapter import document
from benchmarks.dispatch import scale
from benchmarks.dispatch.scale import RESULTS
from benchmarks.load.processes import OTHER_CPU

NAMES = ("queue", "limits", "sharing")


def main() -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dispatch", description=__doc__.splitlines()[0] if __doc__ else None
    )
    names = (*NAMES, "scale")
    parser.add_argument(
        "names", nargs="*", choices=[*names, []], help=f"benchmarks (default all): {', '.join(names)}"
    )
    parser.add_argument("--short", action="store_true", help="fewer and shorter windows")
    parser.add_argument("--document", action="store_true", help="write docs/performance.md and docs/scale.md")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CPU})
    missed = []
    for name in arguments.names or names:
        if name == "scale":
            print(scale.tables(), flush=True)
            continue
        report = asyncio.run(import_module(f"benchmarks.dispatch.{name}").measure(arguments.short))
        print(report.table(), flush=True)
        report.write(arguments.short, RESULTS)
        missed += [goal for goal in report.goals if not goal.is_met]
    if arguments.document:
        document.write()
        scale.write()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
