"""The default number of slots: limited by memory, and by what can probably be served in time."""

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
"""Slots of a worker without an estimate of its memory, and the minimum where they fit."""
CROWD = 8
"""Limit of conversations in the measurement."""
_GAIN = 2.0
"""Highest expected gain: the cost per session in a batch of `CROWD`, divided by that in a large batch."""
_MEMORY = {"cpu": 0.5}
"""Share of the free memory that the slots may take, by type of device."""
_USUAL_MEMORY = 0.9
"""The share on other devices."""

Measure = Callable[[Runtime, int], float]


def usual_slots(build: Build, measure: Measure = unit_seconds) -> int:
    """Return the default number of slots; at run time, admission control decides by measurements."""
    fit = slots_that_fit(build.footprint, build.device, free_bytes(build.device))
    slots = _in_time(build, fit, measure)
    logger.info("slots chosen, because none were given", extra={"slots": slots, "slots_that_fit": fit})
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
