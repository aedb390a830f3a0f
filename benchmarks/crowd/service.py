"""E5: what a unit costs the service, model aside, of what the same messages cost bare gRPC."""

import statistics
from typing import Any, Final

from benchmarks.adapter.report import Goal, Report
from benchmarks.crowd.conversations import hold
from benchmarks.load.processes import OTHER_CPU, TESTED_CPU, running

SESSIONS: Final = 16
MOST: Final = 1.3


async def measure(is_short: bool) -> Report:
    """Crowds in real time, in front of the worker and of bare streams in turn."""
    warm_up, units = (3, 10) if is_short else (10, 20)
    rounds: list[dict[str, float]] = []
    with (
        running("benchmarks.crowd.worker", "--slots", str(SESSIONS), cpu=TESTED_CPU) as worker,
        running("benchmarks.crowd.echo", cpu=TESTED_CPU) as echo,
    ):
        for seed in range(1, 2 if is_short else 4):
            ours = await hold(worker, SESSIONS, seed, warm_up, units)
            bare = await hold(echo, SESSIONS, seed, warm_up, units)
            spent = ours.spent
            rounds.append(
                {
                    "bare gRPC streams": bare.ms_per_unit(bare.spent.process),
                    "service: all but the engine's thread": ours.ms_per_unit(spent.process - spent.engine),
                    "engine's thread beside the model": ours.ms_per_unit(spent.engine - spent.model),
                    "model": ours.ms_per_unit(spent.model),
                }
            )
    found = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    floor = found["bare gRPC streams"]
    rows: list[tuple[Any, ...]] = [(name, ms, ms / floor) for name, ms in found.items()]
    service = found["service: all but the engine's thread"]
    return Report(
        "service",
        f"Processor time for each unit, {SESSIONS} conversations of workload W",
        ("part", "CPU-ms per unit", "of bare gRPC"),
        rows,
        [Goal("E5 service beside the engine's thread over bare gRPC", service / floor, MOST)],
        where=f"worker and bare streams on CPU {TESTED_CPU} in turn, clients on CPU {OTHER_CPU}",
    )
