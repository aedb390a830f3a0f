"""Measurement of the event loop's lag."""

import asyncio
from typing import Final

from antiphon_service.telemetry.instruments import Histogram

SAMPLE_S: Final = 0.5


async def measure_lag(lag: Histogram) -> None:
    """Record the delay of a timer in seconds, twice a second, until the task is cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + SAMPLE_S
        await asyncio.sleep(SAMPLE_S)
        lag.record(max(0.0, loop.time() - due))
