"""Cost of tracing, and a trace: `python -m benchmarks.tracing cost|conversation|picture [--short]`.

`cost` prints a table and writes it to `results/`; without `--short` also into `docs/observability.md`.
`conversation` holds a conversation, writes its spans to `docs/conversation.json` and draws them. `picture`
only draws them.
"""

import argparse
import asyncio
import os
import sys

from benchmarks.load.processes import OTHER_CPU
from benchmarks.tracing import conversation, cost, document, timeline


def main() -> int:
    """Run the command; return the exit code: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("what", choices=("cost", "conversation", "picture"))
    parser.add_argument("--short", action="store_true", help="cost: fewer and shorter windows")
    arguments = parser.parse_args()
    if arguments.what == "conversation":
        conversation.write(conversation.record())
    if arguments.what != "cost":
        timeline.write()
        return 0
    os.sched_setaffinity(0, {OTHER_CPU})
    report = asyncio.run(cost.measure(arguments.short))
    print(report.table(), flush=True)
    report.write(arguments.short, cost.RESULTS)
    if not arguments.short:
        document.write()
    return 0 if all(goal.is_met for goal in report.goals) else 1


if __name__ == "__main__":
    sys.exit(main())
