"""Time to reconnect after half of many connections are lost at once, and its effect on the other half.

Each session sends a unit every two seconds. A client with a lost connection reconnects like the SDK: after a
random part of 0.25 s, then with doubled waits after each failure. These clients run in a separate process
with a lower priority, so that their work does not delay the other clients.
"""

import asyncio
import json
import os
import random
import re
import sys
import time
from collections import deque
from contextlib import ExitStack, suppress
from typing import Final

from benchmarks.adapter.overload import UNBOUNDED
from benchmarks.load.client import Client, text_frame
from benchmarks.load.crowd import Tally
from benchmarks.load.payload import ANSWER, APPEND, PATH, PREPARE, PREPARED
from benchmarks.load.processes import adapter, running
from benchmarks.report import Goal, Report

EVERY_S: Final = 2.0
"""The seconds between two units of a session."""

BACK_S: Final = 5.0
"""The goal in seconds within which all clients have reconnected."""

TIMES: Final = 1.5
"""The largest allowed growth of the p99 of the other sessions, as a factor."""

_UNIT: Final = text_frame(APPEND)
_RESUMED: Final = b'"session.resumed"'
_TOKEN: Final = re.compile(rb'"token":"(rs_[^"]+)"')
_OPENING_AT_ONCE: Final = 32
_FIRST_DELAY_S: Final = 0.25
_NICE: Final = 15
"""The `nice` value of the clients that reconnect."""
_PATIENCE_S: Final = 30.0


class ResumingClient:
    """One session across several connections; the latencies of its units go to `tally`."""

    def __init__(self, port: int) -> None:
        self.tally = Tally()
        self._port = port
        self._token = b""
        self._events = 0
        self._sent: deque[float] = deque()
        self._client: Client | None = None
        self._news = asyncio.Event()
        """An event that is set when a new resume token has arrived."""

    async def begin(self) -> None:
        """Open the session."""
        self._client = await Client.connect(self._port, self._heard)
        self._client.send(text_frame(PREPARE))
        async with asyncio.timeout(_PATIENCE_S):
            await self._news.wait()

    def speak(self) -> None:
        """Send a unit unless the connection is lost."""
        if self._client is None or self._client.closed.is_set():
            return
        self.tally.sent += 1
        self._sent.append(time.monotonic())
        self._client.send(_UNIT)

    def cut(self) -> None:
        """Drop the connection without a Close frame."""
        assert self._client is not None
        self._client.transport.abort()
        self._client = None
        self._sent.clear()

    async def reconnect(self) -> float:
        """Resume the session; return the seconds that it took, including the waits between attempts."""
        begin, delay_s = time.monotonic(), _FIRST_DELAY_S
        await asyncio.sleep(random.uniform(0.0, delay_s))
        while True:
            self._news.clear()
            path = f"{PATH}?resume={self._token.decode()}&last_event={self._events}"
            with suppress(OSError, AssertionError, TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    self._client = await Client.connect(self._port, self._heard, path)
                    await self._news.wait()
                return time.monotonic() - begin
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
            delay_s *= 2

    def _heard(self, client: Client, event: bytes) -> None:
        if _RESUMED in event or PREPARED in event:
            if (found := _TOKEN.search(event)) is not None:
                self._token = found[1]
                self._news.set()
            if _RESUMED in event:
                return  # this event has no number
        self._events += 1
        if ANSWER in event and self._sent:
            self.tally.good += 1
            self.tally.latencies.append(time.monotonic() - self._sent.popleft())


async def _speak(clients: list[ResumingClient]) -> None:
    """Send a unit of each session every `EVERY_S`, spread evenly."""
    last, due, turn = time.monotonic(), 0.0, 0
    while True:
        await asyncio.sleep(0.005)
        now = time.monotonic()
        due += (now - last) * len(clients) / EVERY_S
        last = now
        while due >= 1:
            clients[turn % len(clients)].speak()
            turn += 1
            due -= 1


def _collect(clients: list[ResumingClient]) -> Tally:
    """Return the measurements of all sessions since the last call."""
    whole = Tally()
    for client in clients:
        whole.sent += client.tally.sent
        whole.good += client.tally.good
        whole.latencies += client.tally.latencies
        client.tally = Tally()
    return whole


async def _enter(port: int, count: int) -> list[ResumingClient]:
    """Open `count` sessions."""
    clients = [ResumingClient(port) for _ in range(count)]
    gate = asyncio.Semaphore(_OPENING_AT_ONCE)

    async def enter(client: ResumingClient) -> None:
        async with gate:
            await client.begin()

    await asyncio.gather(*map(enter, clients))
    return clients


async def _leave(port: int, count: int) -> None:
    """Send in `count` sessions, drop all connections at the first line of standard input, and reconnect.

    Prints `ready on <address>` when all sessions are open. At the end it prints a line of JSON: the sorted
    seconds of the successful reconnects, and the number of sessions with answers afterwards.
    """
    clients = await _enter(port, count)
    speaking = asyncio.create_task(_speak(clients))
    print(f"ready on 127.0.0.1:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for client in clients:
        client.cut()
    coming = [asyncio.create_task(client.reconnect()) for client in clients]
    done, missing = await asyncio.wait(coming, timeout=_PATIENCE_S)
    _collect(clients)
    await asyncio.sleep(EVERY_S + 1.0)
    go_on = sum(client.tally.good > 0 for client in clients)
    for task in (speaking, *missing):
        task.cancel()
    print(json.dumps([sorted(task.result() for task in done), go_on]), flush=True)


async def measure(is_short: bool) -> Report:
    """Return the table: latencies of the half that stays before and during the other half's reconnects."""
    count, seconds = (200, 5.0) if is_short else (1000, 15.0)
    options = (*UNBOUNDED, "--resume-window-s", "60")
    half = count // 2
    with ExitStack() as stack:
        worker = stack.enter_context(running("benchmarks.load.worker", "--slots", str(count)))
        process = stack.enter_context(adapter(worker.address, *options))
        leave = stack.enter_context(running("benchmarks.adapter.resume", str(process.port), str(half)))
        stay = await _enter(process.port, half)
        speaking = asyncio.create_task(_speak(stay))
        await asyncio.sleep(2.0)
        _collect(stay)
        await asyncio.sleep(seconds)
        before = _collect(stay)
        leave.say("cut")
        await asyncio.sleep(BACK_S)
        during = _collect(stay)
        line = await asyncio.to_thread(leave.output.readline)
        speaking.cancel()
    times, go_on = json.loads(line)
    p99, p99_during = before.percentile(0.99), during.percentile(0.99)
    last = times[-1] if len(times) == half else float("inf")
    return Report(
        "resume",
        "Half of all connections lost at once, a unit every 2 s in each session",
        (
            "sessions",
            "lost",
            "reconnected",
            "continued",
            "reconnect p50 s",
            "reconnect max s",
            "p99 before ms",
            "p99 during ms",
        ),
        [
            (
                count,
                half,
                len(times),
                go_on,
                times[len(times) // 2] if times else float("nan"),
                last,
                p99,
                p99_during,
            )
        ],
        (
            Goal("share of lost sessions that resume and get answers", go_on / half, 1.0, at_most=False),
            Goal("seconds until all clients have reconnected", last, BACK_S),
            Goal(
                f"p99 of the other sessions in the next {BACK_S:g} s, over the p99 before",
                p99_during / p99,
                TIMES,
            ),
        ),
        "the latency is that of client, adapter and worker together",
    )


if __name__ == "__main__":
    os.nice(_NICE)
    asyncio.run(_leave(int(sys.argv[1]), int(sys.argv[2])))
