"""Goal E4 for cost: CPU time per second of a session, with few and many sessions, young and old ones."""

from typing import Any, Final

from benchmarks.crowd.conversations import Tally, hold
from benchmarks.crowd.workload import CYCLE
from benchmarks.load.processes import OTHER_CPU, TESTED_CPU, running
from benchmarks.report import Goal, Report

CROWDS: Final = (8, 16, 32, 64)
OLD: Final = 8
"""The cycles after which a session is old; its window has slid many times."""
YOUNG: Final = 2
"""The cycles after which a session is young: its context is full for the first time."""
_AGED: Final = 8
"""The number of sessions in the comparison of young and old sessions."""


async def measure(is_short: bool) -> Report:
    """Return the worker's CPU time per unit for each number of sessions and each age."""
    warm_up, units = (5, 10) if is_short else (20, CYCLE)
    rows: list[tuple[Any, ...]] = []
    costs: dict[Any, float] = {}

    def note(what: str, tally: Tally) -> None:
        costs[what] = tally.ms_per_unit(tally.spent.process)
        rows.append(
            (
                what,
                tally.sessions,
                costs[what],
                tally.ms_per_unit(tally.spent.model),
                tally.ms_per_unit(tally.spent.engine - tally.spent.model),
                tally.ms_per_unit(tally.spent.process - tally.spent.engine),
                tally.spent.process / tally.seconds,
            )
        )

    with running("benchmarks.crowd.worker", "--slots", str(max(CROWDS)), cpu=TESTED_CPU) as worker:
        for sessions in CROWDS:
            note(f"crowd of {sessions}", await hold(worker, sessions, 1, warm_up, units))
    goals = [
        Goal(
            f"E4 CPU time per second of a session, {max(CROWDS)} sessions over {min(CROWDS)}",
            costs[f"crowd of {max(CROWDS)}"] / costs[f"crowd of {min(CROWDS)}"],
            1.15,
        )
    ]
    if not is_short:
        with running("benchmarks.crowd.worker", "--slots", str(_AGED), cpu=TESTED_CPU) as worker:
            note("young sessions", await hold(worker, _AGED, 1, YOUNG * CYCLE, CYCLE))
            note("old sessions", await hold(worker, _AGED, 1, OLD * CYCLE, CYCLE))
        goals.append(
            Goal(
                f"E4 cost after {OLD} cycles over after {YOUNG}",
                costs["old sessions"] / costs["young sessions"],
                1.15,
            )
        )
    return Report(
        "flatness",
        "Processor time of the worker per second of a session, workload W in real time, ms",
        ("what", "sessions", "all", "model", "engine without model", "service", "cores"),
        rows,
        goals,
        where=f"worker on CPU {TESTED_CPU} with one thread, clients on CPU {OTHER_CPU}",
    )
