"""Open-loop load: clients that send one unit a second each, spread evenly over the second."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from benchmarks.load.client import Client, converse, text_frame
from benchmarks.load.payload import ANSWER, APPEND, DROPPED

IN_TIME_S = 4.0
"""The deadline of goodput in seconds: the adapter drops units that wait for more than 3 s."""

_UNIT = text_frame(APPEND)
_STEP_S = 0.005
_OPENING_AT_ONCE = 32


@dataclass
class Tally:
    """Counts of a period: sent units, and good, dropped and late answers. Latencies are in seconds."""

    sent: int = 0
    good: int = 0
    dropped: int = 0
    late: int = 0
    latencies: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Return a percentile of the latency of good units, in milliseconds."""
        times = sorted(self.latencies)
        return times[min(len(times) - 1, int(share * len(times)))] * 1000 if times else float("nan")


class PacedClient:
    """One client of a crowd; answers come in the order of its units."""

    def __init__(self, crowd: "Crowd") -> None:
        self._crowd = crowd
        self._sent: deque[float] = deque()
        self.client: Client | None = None

    async def connect(self, port: int, has_session: bool) -> None:
        """Open a session, or only the connection. Raises ConnectionError if it is rejected."""
        opened = converse if has_session else Client.connect
        self.client = await opened(port, self._heard)

    def speak(self, now: float) -> None:
        """Send a unit at the monotonic time `now`, unless the connection is closed."""
        assert self.client is not None
        if self.client.closed.is_set():
            return
        self._crowd.tally.sent += 1
        self._sent.append(now)
        self.client.send(self._crowd.unit)

    def _heard(self, client: Client, event: bytes) -> None:
        if ANSWER not in event or not self._sent:
            return
        tally = self._crowd.tally
        age = time.monotonic() - self._sent.popleft()
        if DROPPED in event:
            tally.dropped += 1
        elif age > IN_TIME_S:
            tally.late += 1
        else:
            tally.good += 1
            tally.latencies.append(age)


class Crowd:
    """Clients of one adapter. The first `active` of them send the frame `unit` once a second.

    Without `has_sessions` they are clients of a plain WebSocket server without sessions.
    """

    def __init__(self, port: int, unit: bytes = _UNIT, *, has_sessions: bool = True) -> None:
        self.unit = unit
        self._has_sessions = has_sessions
        self.tally = Tally()
        self.active = 0
        self.refused = 0
        self._port = port
        self._clients: list[PacedClient] = []
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._clients)

    async def grow(self, to: int) -> None:
        """Open sessions up to a total of `to`; count rejections in `refused`."""
        gate = asyncio.Semaphore(_OPENING_AT_ONCE)

        async def enter() -> None:
            client = PacedClient(self)
            async with gate:
                try:
                    await client.connect(self._port, self._has_sessions)
                except (ConnectionError, TimeoutError):
                    self.refused += 1
                    return
            self._clients.append(client)

        await asyncio.gather(*(enter() for _ in range(to - len(self._clients))))

    async def fill(self, to: int) -> None:
        """Open sessions up to a total of `to`; retry after rejections."""
        while len(self._clients) < to:
            await self.grow(min(to, len(self._clients) + _OPENING_AT_ONCE))
            await asyncio.sleep(0.05)

    def begin(self) -> None:
        """Start to send."""
        self._task = asyncio.create_task(self._speak())

    async def measure(self, seconds: float) -> Tally:
        """Return the tally of the next `seconds`."""
        self.tally = Tally()
        await asyncio.sleep(seconds)
        return self.tally

    async def leave(self) -> None:
        """Disconnect every client."""
        if self._task is not None:
            self._task.cancel()
        for client in self._clients:
            if client.client is not None:
                client.client.transport.abort()
        self._clients.clear()

    async def _speak(self) -> None:
        last, due, turn = time.monotonic(), 0.0, 0
        while True:
            await asyncio.sleep(_STEP_S)
            now = time.monotonic()
            due += (now - last) * self.active
            last = now
            while due >= 1 and self.active:
                self._clients[turn % self.active].speak(now)
                turn += 1
                due -= 1
