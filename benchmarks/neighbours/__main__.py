"""Isolation of conversations under attack: `python -m benchmarks.neighbours [--short] [attack ...]`.

The command prints a table, and a line on standard error after each attack. A run of all attacks writes
`results/neighbours.json`. The exit code is 1 if a goal is missed or an attack had none of its expected
outcomes.
"""

import argparse
import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Final

from benchmarks.adapter import document
from benchmarks.neighbours import figures
from benchmarks.neighbours.attacks import ATTACKS
from benchmarks.neighbours.measure import CLIENTS_CPU, REST_S, WARM_UP_S, measure

MOST_S: Final = 590.0
"""The longest measurement in seconds: the adapter ends sessions after 10 minutes."""


def main() -> int:
    """Run the named attacks, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.neighbours",
        description=__doc__.splitlines()[0] if __doc__ else None,
    )
    parser.add_argument(
        "names",
        nargs="*",
        choices=[*ATTACKS, []],
        metavar="attack",
        help=f"attacks (default all): {', '.join(ATTACKS)}",
    )
    parser.add_argument("--short", action="store_true", help="one round of 6 s each")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of each window (default 15)")
    parser.add_argument("--rounds", type=int, default=4, help="quiet and attacked windows each (default 4)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON instead of the table")
    parser.add_argument(
        "--again",
        action="store_true",
        help="replace the results of the named attacks in the file of a complete run",
    )
    parser.add_argument("--document", action="store_true", help="write docs/performance.md too")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs of workers and adapters")
    given = parser.parse_args()
    if given.again and not given.names:
        parser.error("--again needs the names of attacks")
    if given.document and given.names and not given.again:
        parser.error("--document needs a run of all attacks, or --again")
    if given.short:
        given.seconds, given.rounds = 6.0, 1
    if given.seconds <= 0 or given.rounds < 1:
        parser.error("--seconds and --rounds must be above 0")
    if WARM_UP_S + given.rounds * (2 * given.seconds + REST_S) > MOST_S:
        parser.error(f"a measurement takes at most {MOST_S:g} s: choose fewer rounds or fewer seconds")
    if given.logs is not None:
        given.logs.mkdir(parents=True, exist_ok=True)
    os.sched_setaffinity(0, {CLIENTS_CPU})
    # SIGTERM must end the child processes, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    outcomes = []
    for name in given.names or ATTACKS:
        outcome = asyncio.run(measure(ATTACKS[name], given.seconds, given.rounds, given.logs))
        outcomes.append(outcome)
        state = "met" if figures.is_met(outcome) else "MISSED"
        print(
            f"{name}: p99 x {outcome.times:.2f}, goodput x {outcome.kept:.3f}, {state}; "
            f"{figures.summary(outcome)}",
            file=sys.stderr,
            flush=True,
        )
    length = ["--seconds", f"{given.seconds:g}", "--rounds", str(given.rounds)]
    command = shlex.join(["python", "-m", "benchmarks.neighbours", *given.names, *length])
    found = figures.report(outcomes, command)
    print(found.json(given.short) if given.json else found.table(), flush=True)
    if not given.names:
        found.write(given.short, figures.RESULTS)
    elif given.again:
        figures.renew(outcomes, command)
    if given.document:
        document.write()
    met = all(figures.is_met(outcome) and outcome.took_place for outcome in outcomes)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
