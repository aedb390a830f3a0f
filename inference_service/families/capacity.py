"""The default number of slots: as many as fit into memory, and as can probably be served in time."""

import logging
from collections.abc import Callable

import torch

from inference_service.engine.batch.memory import free_bytes
from inference_service.engine.runtime import Runtime
from inference_service.families.family import Build
from inference_service.families.memory.footprint import Footprint
from inference_service.families.warmup import unit_seconds
from inference_service.interface.setups import Mode
from inference_service.options import MOST_SLOTS

logger = logging.getLogger(__name__)

FEWEST = 4
"""Slots of a worker without any estimate, and the minimum if they fit."""
CROWD = 8
"""Conversations in the measurement."""
_GAIN = 2.0
"""Highest gain per session of a large crowd over one of eight."""
_MEMORY = {"cpu": 0.5}
"""Share of a device's free memory that the slots may take."""
_USUAL_MEMORY = 0.9

Measure = Callable[[Runtime, int], float]


def usual_slots(build: Build, measure: Measure = unit_seconds) -> int:
    """Return the default number of slots; at run time, admission control decides by measurements."""
    fit = slots_that_fit(build.footprint, build.device, free_bytes(build.device))
    slots = _in_time(build, fit, measure)
    logger.info("the worker was given no number of slots", extra={"slots": slots, "slots_that_fit": fit})
    return slots


def slots_that_fit(footprint: Footprint | None, device: torch.device, free: int | None) -> int:
    """Return how many slots fit into `free` bytes; `FEWEST` if that is unknown."""
    if footprint is None or free is None:
        return FEWEST
    share = _MEMORY.get(device.type, _USUAL_MEMORY)
    return min(MOST_SLOTS, max(1, footprint.slots_within(round(free * share))))


def _in_time(build: Build, most: int, measure: Measure) -> int:
    """Return how many conversations this machine can probably serve in time, at most `most`."""
    crowd = min(CROWD, most)

    def cost(runtime: Runtime) -> float:
        # A model without units does nothing that has a deadline.
        return measure(runtime, crowd) if Mode.AUDIO in runtime.info.modes else 0.0

    cost_s = build.try_out(crowd, cost)
    return most if cost_s <= 0 else min(most, max(FEWEST, int(_GAIN / cost_s)))
