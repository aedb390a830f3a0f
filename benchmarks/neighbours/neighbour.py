"""A conversation in real time during an attack, with the times of every unit."""

import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from antiphon.connection.endpoint import REALTIME, endpoint, open_websocket
from antiphon_command.bench.talker import UNIT_S

OPEN_S: Final = 60.0
"""The longest that a session may take to open: the first ones are slower."""


@dataclass
class Unit:
    """A second of audio that was due at the monotonic time `due`; it may have been sent later."""

    due: float
    answered: float = math.nan
    """The time of the first event of its answer."""
    dropped: bool = False
    """Whether the answer says that the unit was dropped."""

    @property
    def latency_s(self) -> float:
        """The time from its due time to its first answer; NaN without an answer."""
        return self.answered - self.due

    @property
    def is_good(self) -> bool:
        """Whether the unit was processed, and answered before the next one."""
        return self.latency_s <= UNIT_S and not self.dropped


class Neighbour:
    """A client that sends a unit every second.

    Call `open`, then `converse` until it is cancelled; `close` in any case.
    """

    def __init__(self, seconds: Sequence[str]) -> None:
        """Create a client that repeats `seconds`: base64 of float32 mono at 16 kHz."""
        self.units: list[Unit] = []
        self._seconds = seconds
        self._waiting: dict[str, Unit] = {}
        self._socket: ClientConnection | None = None

    async def open(self, url: str) -> None:
        """Open a session; retry if the adapter is overloaded. Raises `ConnectError`, `TimeoutError`."""
        async with asyncio.timeout(OPEN_S):
            while True:
                self._socket = await open_websocket(endpoint(url, REALTIME, "audio"), None)
                try:
                    await self._socket.send('{"type":"session.init","payload":{}}')
                    while json.loads(await self._socket.recv())["type"] != "session.created":
                        pass
                    return
                except ConnectionClosed:
                    await asyncio.sleep(UNIT_S)

    async def converse(self, begin: float) -> None:
        """Send units from the monotonic time `begin` on. Units after the session's end have no answer."""
        assert self._socket is not None
        listening = asyncio.create_task(self._listen(self._socket))
        try:
            while True:
                due = begin + len(self.units) * UNIT_S
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                await self._say(self._socket, Unit(due))
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            await self._socket.close()

    async def _say(self, socket: ClientConnection, unit: Unit) -> None:
        number = len(self.units)
        name = f"unit-{number}"
        self.units.append(unit)
        self._waiting[name] = unit
        audio = self._seconds[number % len(self._seconds)]
        try:
            await socket.send(f'{{"type":"input.append","input":{{"audio":"{audio}","input_id":"{name}"}}}}')
        except ConnectionClosed:
            del self._waiting[name]

    async def _listen(self, socket: ClientConnection) -> None:
        async for data in socket:
            now = time.monotonic()
            event = json.loads(data)
            if event["type"] != "response.output.delta":
                continue
            unit = self._waiting.pop(event["input_id"], None)
            if unit is not None:
                unit.answered = now
                unit.dropped = bool(event["metrics"].get("dropped"))
