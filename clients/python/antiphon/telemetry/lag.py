"""How late an event loop is."""

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

SAMPLE_S: Final = 0.5


class Recorder(Protocol):
    """A histogram without labels."""

    @property
    def record(self) -> Callable[[float], object]:
        """Takes a value in seconds."""


async def measure_lag(lag: Recorder) -> None:
    """Records how late a timer was, twice a second until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + SAMPLE_S
        await asyncio.sleep(SAMPLE_S)
        lag.record(max(0.0, loop.time() - due))
