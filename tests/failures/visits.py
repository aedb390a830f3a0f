"""Clients that go into a state of a session and stay there, in this process or in one of their own.

    python -m tests.failures.visits URL NAME

begins one for each state that it reads a line with, and prints a line of JSON for everything that a client
hears: its state, the time, and the event or the code with which its connection ended. A session is held in
its state by the script that it brings along.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidMessage

from tests.conformance.support.words import CLOSE, G3
from tests.support.scripted_engine import End, Play, Script, listen, speak

Event = dict[str, Any]

STATES = ("queued", "attaching", "prefill", "generate", "finalize", "closing")
HELD = {"attaching": ("ready", 0), "closing": ("clean", 0)} | {
    step: (step, 1) for step in ("prefill", "generate", "finalize")
}
"""The step and unit that a worker holds in each state; `ScriptedEngine.release` takes them."""

WORDS = [f"word {number}" for number in range(1, 8)]
"""The words that a neighbour hears, one a unit, in a loop."""

TARGET = "/v1/realtime?mode=audio"
PAUSE_S = 0.2
WAITING = frozenset({"session.queued", "session.queue_update"})


def script_of(name: str, state: str) -> Script:
    """Return the script that keeps a session in `state`; a neighbour's holds no step."""
    key = f"{name}-{state}"
    match state:
        case "neighbour":
            return Script(tuple(speak(word, seconds=0.1) for word in WORDS), repeat=True, key=key)
        case "attaching":
            return Script((listen(),), slow_start=True, key=key)
        case "closing":
            return Script((listen(),), slow_cleanup=True, key=key)
        case "queued":
            return Script((speak("served", seconds=0.1),), repeat=True, key=key)
    return Script((Play(says=(("mid", 0.1),), end=End.TURN, hold=state),), key=key)


@dataclass(eq=False)
class Visit:
    """One client. `events` are those that it heard; `code` is that of the Close, 1006 without one."""

    name: str
    state: str
    told: Callable[["Visit", Event], None] = lambda visit, event: None
    events: list[Event] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    code: int | None = None
    ended_at: float = 0.0
    units: int = 0
    """Answers to a neighbour, each the one it would have got alone."""
    is_talking: bool = True
    news: asyncio.Event = field(default_factory=asyncio.Event)
    _socket: ClientConnection | None = None

    @property
    def key(self) -> str:
        return f"{self.name}-{self.state}"

    @property
    def is_created(self) -> bool:
        return "session.created" in self.kinds()

    def kinds(self, start: int = 0) -> list[str]:
        """Return the kinds of the events from number `start` on, without queue updates."""
        found = [_kind(event) for event in self.events[start:]]
        return [kind for kind in found if kind not in WAITING]

    async def run(self, url: str) -> None:
        try:
            async with connect(url + TARGET, compression=None, max_size=None, ping_interval=None) as socket:
                self._socket = socket
                async for message in socket:
                    event = json.loads(message)
                    self.hear(event, time.monotonic())
                    with suppress(ConnectionClosed):  # what was said before is still to be read
                        await self._answer(socket, event)
                self.end(socket.close_code or 1006)
        except (ConnectionClosed, OSError, InvalidMessage) as error:
            closed = error.rcvd if isinstance(error, ConnectionClosed) else None
            self.end(closed.code if closed else 1006)

    async def say_more(self) -> None:
        assert self._socket is not None
        with suppress(ConnectionClosed):
            await self._socket.send(json.dumps(G3.append()))

    def hear(self, event: Event, at: float) -> None:
        """An event has come; `at` is a time of the monotonic clock, which all processes share."""
        self.events.append(event)
        self.times.append(at)
        self.told(self, event)
        self.news.set()

    def end(self, code: int) -> None:
        self.code, self.ended_at = code, time.monotonic()
        self.told(self, {"type": "end", "code": code})
        self.news.set()

    async def _answer(self, socket: ClientConnection, event: Event) -> None:
        match _kind(event):
            case "session.queue_done":
                await socket.send(json.dumps(G3.init(script_of(self.name, self.state))))
            case "session.created" if self.state == "closing":
                await socket.send(json.dumps(CLOSE))
            case "session.created" if self.state != "attaching":
                await socket.send(json.dumps(G3.append()))
            case "text" if self.state == "neighbour":
                assert event["text"] == WORDS[self.units % len(WORDS)], event
                self.units += 1
                await asyncio.sleep(PAUSE_S)
                last = not self.is_talking
                await socket.send(json.dumps(CLOSE if last else G3.append()))

    async def until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    self.news.clear()
                    await self.news.wait()
        except TimeoutError:
            raise AssertionError(f"{self.key}: no {what} in {within_s:g} s: {self.kinds()}") from None


def _kind(event: Event) -> str:
    if event["type"] == "error":
        return f"error:{event['error']['code']}"
    return str(event.get("kind", event["type"]))


def _tell(visit: Visit, event: Event) -> None:
    told = {name: value for name, value in event.items() if name != "audio"}
    print(json.dumps({"state": visit.state, "at": time.monotonic(), "event": told}), flush=True)


async def _main(url: str, name: str) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with asyncio.TaskGroup() as visits:
        while line := await lines.readline():
            visits.create_task(Visit(name, line.decode().strip(), _tell).run(url))


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
