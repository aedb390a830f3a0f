"""The engine of a worker, loaded like in `antiphon worker`, with the scripted output of workload W."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.crowd.scripted import script
from benchmarks.gpu_crowd.phases import Phases
from inference_service.engine.batch.memory import free_bytes
from inference_service.families import table
from inference_service.families.capacity import slots_that_fit
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.families.loading import load_engine, usable_device
from inference_service.options import WorkerOptions


class Worker:
    """An engine for several trials, with a meter of the parts of its ticks. Call `close` in any case."""

    def __init__(self, folder: Path, device: str, dtype: str, context_limit: int, most: int) -> None:
        """Load the checkpoint in `folder` with as many slots as memory holds, at most `most`.

        Raises `CheckpointError` or `ConfigurationError` if it cannot be loaded.
        """
        self.fatal: list[str] = []
        """The reasons of the engine's failure; empty while it runs."""
        where = usable_device(device)
        footprint = table.footprint(folder, where, context_limit, dtype)
        free = free_bytes(where)
        left = None if free is None else free - sum(footprint.weights.values())
        self.slots = min(most, slots_that_fit(footprint, where, left))
        options = WorkerOptions(
            model=str(folder), device=device, dtype=dtype, context_limit=context_limit, slots=self.slots
        )
        self.engine = load_engine(options, deliver, self.fatal.append)
        runtime: DuplexRuntime = cast(Any, self.engine)._runtime  # engines do not expose their runtime
        script(runtime)
        self.device = runtime.device
        self.phases = Phases(runtime)
        self.engine.watch(self.phases.take)

    def close(self) -> None:
        """End the engine."""
        self.engine.stop()
        self.phases.close()


def deliver(told: Sequence[tuple[Any, Any]]) -> None:
    """Deliver events at once, on the thread that reports them."""
    for sink, event in told:
        sink(event)
