"""Benchmarks of the adapter: `python -m benchmarks.adapter [--short] [--against DIR] [name ...]`.

Each benchmark prints a table and writes it to `results/`. A complete run without `--short` also writes
`docs/performance.md`. The exit code is 1 if a goal is missed.
"""

import argparse
import asyncio
import os
import resource
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.adapter import document
from benchmarks.load.processes import OTHER_CPU

NAMES = ("codec", "cost", "transports", "live", "speech", "idle", "density", "overload", "resume", "failover")


def main() -> int:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "names", nargs="*", choices=[*NAMES, []], help=f"benchmarks to run (default all): {', '.join(NAMES)}"
    )
    parser.add_argument("--short", action="store_true", help="fewer and shorter windows")
    parser.add_argument(
        "--against",
        metavar="DIR",
        type=Path,
        help="cost: also measure the adapter of this source tree; writes no results",
    )
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CPU})
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    missed = []
    for name in arguments.names or NAMES:
        others = (arguments.against,) if name == "cost" else ()
        report = asyncio.run(import_module(f"benchmarks.adapter.{name}").measure(arguments.short, *others))
        print(report.table(), flush=True)
        if arguments.against is None:
            report.write(arguments.short, document.RESULTS)
        missed += [goal for goal in report.goals if not goal.is_met]
    if not (arguments.short or arguments.names or arguments.against):
        document.write()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
