"""Benchmarks of one worker with many sessions: `python -m benchmarks.crowd [--short] [name ...]`.

Each benchmark prints a table and writes it to `results/`; `--document` also writes `docs/performance.md`. The
exit code is 1 if a goal is missed.
"""

import argparse
import asyncio
import os
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.adapter import document
from benchmarks.load.processes import OTHER_CPU

NAMES = ("real_time", "batching", "first_event", "flatness", "service", "interpreter", "phases")


def main() -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.crowd", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument(
        "names", nargs="*", choices=[*NAMES, []], help=f"benchmarks (default all): {', '.join(NAMES)}"
    )
    parser.add_argument("--short", action="store_true", help="fewer and shorter windows")
    parser.add_argument("--document", action="store_true", help="write docs/performance.md too")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CPU})
    missed = []
    for name in arguments.names or NAMES:
        report = asyncio.run(import_module(f"benchmarks.crowd.{name}").measure(arguments.short))
        print(report.table(), flush=True)
        report.write(arguments.short, Path(__file__).parent / "results")
        missed += [goal for goal in report.goals if not goal.is_met]
    if arguments.document:
        document.write()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
