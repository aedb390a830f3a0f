"""How late an event loop is."""

import asyncio
from typing import Final

from opentelemetry.metrics import Histogram

SAMPLE_S: Final = 0.5


async def measure_lag(lag: Histogram) -> None:
    """Records how late a timer was, twice a second until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + SAMPLE_S
        await asyncio.sleep(SAMPLE_S)
        lag.record(max(0.0, loop.time() - due))
