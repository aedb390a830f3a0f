"""Goal E5 for overhead: CPU time of the service per unit without the model, relative to plain gRPC."""

import statistics
from typing import Any, Final

from benchmarks.crowd.conversations import hold
from benchmarks.load.processes import OTHER_CPU, TESTED_CPU, running
from benchmarks.report import Goal, Report

SESSIONS: Final = 16
MOST: Final = 2.5
FLOOR: Final = "plain gRPC streams with the same model"
SERVICE: Final = "service: all but the engine's thread and audio features"


async def measure(is_short: bool) -> Report:
    """Measure sessions in real time on the worker and on plain gRPC streams, in turn.

    The streams run in a process with a model and in one without.
    """
    warm_up, units = (3, 10) if is_short else (10, 20)
    rounds: list[dict[str, float]] = []
    slots = ("--slots", str(SESSIONS))
    with (
        running("benchmarks.crowd.worker", *slots, cpu=TESTED_CPU) as worker,
        running("benchmarks.crowd.ticking", "--paced", *slots, cpu=TESTED_CPU) as beside,
        running("benchmarks.crowd.echo", cpu=TESTED_CPU) as echo,
    ):
        for seed in range(1, 2 if is_short else 4):
            ours, floor, bare = [
                await hold(process, SESSIONS, seed, warm_up, units) for process in (worker, beside, echo)
            ]
            spent = ours.spent
            rounds.append(
                {
                    "plain gRPC streams alone": bare.ms_per_unit(bare.spent.process),
                    FLOOR: floor.ms_per_unit(floor.spent.process - floor.spent.engine),
                    SERVICE: ours.ms_per_unit(spent.process - spent.engine - spent.features),
                    "engine's thread without the model": ours.ms_per_unit(spent.engine - spent.model),
                    "audio features of the model": ours.ms_per_unit(spent.features),
                    "model": ours.ms_per_unit(spent.model),
                }
            )
    found = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    floor_ms = found[FLOOR]
    rows: list[tuple[Any, ...]] = [(name, ms, ms / floor_ms) for name, ms in found.items()]
    return Report(
        "service",
        f"Processor time per unit, {SESSIONS} conversations of workload W; the floor is plain gRPC streams"
        " in a process that computes the same units",
        ("part", "CPU-ms per unit", "of the floor"),
        rows,
        [Goal("E5 service without the engine's thread over the floor", found[SERVICE] / floor_ms, MOST)],
        where=f"worker and both kinds of streams on CPU {TESTED_CPU} in turn, clients on CPU {OTHER_CPU}",
    )
