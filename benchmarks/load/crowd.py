"""A crowd of clients that speak in real time: one unit a second each, their seconds spread evenly."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from benchmarks.load.client import Client, converse, text_frame
from benchmarks.load.payload import ANSWER, APPEND, DROPPED

IN_TIME_S = 4.0
"""An answer that comes later is worth nothing: the adapter drops what waits for more than 3 s."""

_UNIT = text_frame(APPEND)
_STEP_S = 0.005
_OPENING_AT_ONCE = 32


@dataclass
class Tally:
    """The outcome of the units whose answers came in a period. Latencies are in seconds."""

    sent: int = 0
    good: int = 0
    dropped: int = 0
    late: int = 0
    latencies: list[float] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        """Return a percentile of the latency of good units, in milliseconds."""
        times = sorted(self.latencies)
        return times[min(len(times) - 1, int(share * len(times)))] * 1000 if times else float("nan")


class Speaker:
    """One client; answers come in the order of its units."""

    def __init__(self, crowd: "Crowd") -> None:
        self._crowd = crowd
        self._sent: deque[float] = deque()
        self.client: Client | None = None

    async def connect(self, port: int, has_session: bool) -> None:
        """Open its session, or the connection alone. Raises ConnectionError if it is refused."""
        opened = converse if has_session else Client.connect
        self.client = await opened(port, self._heard)

    def speak(self, now: float) -> None:
        """Send a unit."""
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
    """Speakers in front of one adapter. Only `active` of them speak: the frame `unit`, again and again.

    Without `has_sessions` they speak to a bare server, which knows no sessions.
    """

    def __init__(self, port: int, unit: bytes = _UNIT, *, has_sessions: bool = True) -> None:
        self.unit = unit
        self._has_sessions = has_sessions
        self.tally = Tally()
        self.active = 0
        self.refused = 0
        self._port = port
        self._speakers: list[Speaker] = []
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._speakers)

    async def grow(self, to: int) -> None:
        """Open sessions until there are so many; those that are refused are counted."""
        gate = asyncio.Semaphore(_OPENING_AT_ONCE)

        async def enter() -> None:
            speaker = Speaker(self)
            async with gate:
                try:
                    await speaker.connect(self._port, self._has_sessions)
                except (ConnectionError, TimeoutError):
                    self.refused += 1
                    return
            self._speakers.append(speaker)

        await asyncio.gather(*(enter() for _ in range(to - len(self._speakers))))

    async def fill(self, to: int) -> None:
        """Open sessions until there are so many, however often that is refused."""
        while len(self._speakers) < to:
            await self.grow(min(to, len(self._speakers) + _OPENING_AT_ONCE))
            await asyncio.sleep(0.05)

    def begin(self) -> None:
        """Start every active client."""
        self._task = asyncio.create_task(self._speak())

    async def measure(self, seconds: float) -> Tally:
        """Return the tally of the next seconds."""
        self.tally = Tally()
        await asyncio.sleep(seconds)
        return self.tally

    async def leave(self) -> None:
        """Disconnect every client."""
        if self._task is not None:
            self._task.cancel()
        for speaker in self._speakers:
            if speaker.client is not None:
                speaker.client.transport.abort()
        self._speakers.clear()

    async def _speak(self) -> None:
        last, due, turn = time.monotonic(), 0.0, 0
        while True:
            await asyncio.sleep(_STEP_S)
            now = time.monotonic()
            due += (now - last) * self.active
            last = now
            while due >= 1 and self.active:
                self._speakers[turn % self.active].speak(now)
                turn += 1
                due -= 1
