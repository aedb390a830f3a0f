"""Many clients that cut their connections without a word, each in a state chosen at random, or that flood."""

import asyncio
import base64
import json
import os
import random
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from tests.storm.floods import FLOODS, NotCut, flood, flood_pages
from tests.support.patience import PATIENCE_S

SECOND: Final = base64.b64encode(bytes(64_000)).decode()

PAGES: Final = ("/health", "/status", "/api/queue", "/v1/models", "/nothing", "/v1/realtime")

ADAPTER: Final = ("--trusted-proxies", "127.0.0.0/8", "--pages-per-min-per-address", "30")
"""Options of an adapter in a storm: some of the clients come as through a proxy."""

WORKER: Final = ("--script", "talk", "--modes", "audio,chat,transcribe")

Event = dict[str, Any]


@dataclass(frozen=True)
class Words:
    target: str
    opener: Event
    is_open: str
    append: Callable[[bool], Event]
    end: Event
    pause: tuple[Event, ...] = ()


DIALECTS: Final = {
    "current": Words(
        "/v1/realtime?mode=audio",
        {"type": "session.init", "payload": {}},
        "session.created",
        lambda force: {"type": "input.append", "input": {"audio": SECOND, "force_listen": force}},
        {"type": "session.close"},
    ),
    "earlier": Words(
        "/v1/realtime?mode=audio",
        {"type": "session.update", "session": {"instructions": "Answer."}},
        "session.created",
        lambda force: {"type": "input_audio_buffer.append", "audio": SECOND, "force_listen": force},
        {"type": "session.close"},
    ),
    "duplex": Words(
        "/ws/duplex/adx_storm",
        {"type": "prepare"},
        "prepared",
        lambda force: {"type": "audio_chunk", "audio_base64": SECOND, "force_listen": force},
        {"type": "stop"},
        ({"type": "pause", "timeout": 2},),
    ),
}


class Visitor:
    """One client. Its methods end where it vanishes."""

    def __init__(self, address: str, words: Words, rng: random.Random) -> None:
        self._address = address
        self._words = words
        self._rng = rng

    async def half_a_request(self) -> None:
        host, port = self._address.removeprefix("http://").rsplit(":", 1)
        _, writer = await asyncio.open_connection(host, int(port))
        request = f"GET {self._words.target} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n\r\n"
        writer.write(request.encode()[: self._rng.randint(1, len(request) - 3)])
        writer.transport.abort()

    async def upgraded(self) -> None:
        """With or without a place in the queue, having said nothing."""
        async with self._visit():
            pass

    async def told_of_its_place(self) -> None:
        async with self._visit() as socket:
            await socket.recv()

    async def opener_sent(self) -> None:
        async with self._visit() as socket:
            await self._say(socket, self._words.opener)

    async def begun(self) -> None:
        async with self._opened():
            pass

    async def listening(self) -> None:
        async with self._opened() as socket:
            for _ in range(self._rng.randint(1, 4)):
                await self._say(socket, self._words.append(self._rng.random() < 0.2))

    async def speaking(self) -> None:
        async with self._opened() as socket:
            await self._say(socket, *[self._words.append(False)] * 3)
            await socket.recv()

    async def half_a_frame(self) -> None:
        async with self._opened() as socket:
            payload = json.dumps(self._words.append(False)).encode()
            head = b"\x81\xff" + struct.pack("!Q", len(payload)) + os.urandom(4)
            socket.transport.write(head + payload[: self._rng.randint(0, len(payload) - 1)])

    async def paused(self) -> None:
        async with self._opened() as socket:
            await self._say(socket, self._words.append(False), *self._words.pause)

    async def flooding(self) -> None:
        """Not until it is cut: with as much as it can send of something small, in any dialect."""
        name = self._rng.choice(list(FLOODS))
        cut = await flood(self._address, FLOODS[name])
        assert (cut.error, cut.close) == ("rate_limited", 1008), (name, cut)

    async def flooding_with_requests(self) -> None:
        """From beyond the proxy that the adapter of the storm trusts; not until it is refused."""
        visitor = f"203.0.113.{self._rng.randint(1, 254)}"
        await flood_pages(self._address, self._rng.choice(PAGES), visitor)

    async def closing(self) -> None:
        async with self._opened() as socket:
            await self._say(socket, self._words.append(False), self._words.end)

    @asynccontextmanager
    async def _visit(self) -> AsyncIterator[ClientConnection]:
        """A WebSocket that is cut on leaving the block: by a FIN or, at random, by a reset."""
        is_reset = self._rng.random() < 0.5
        url = self._address.replace("http://", "ws://") + self._words.target
        socket_ = await connect(url, compression=None, max_size=None, ping_interval=None)
        try:
            yield socket_
        finally:
            if is_reset:
                bare: socket.socket = socket_.transport.get_extra_info("socket")
                bare.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            socket_.transport.abort()
            await socket_.wait_closed()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[ClientConnection]:
        """The same, with a session that takes input."""
        async with self._visit() as socket:
            await self._say(socket, self._words.opener)
            while json.loads(await socket.recv())["type"] != self._words.is_open:
                pass
            yield socket

    async def _say(self, socket: ClientConnection, *events: Event) -> None:
        for event in events:
            await socket.send(json.dumps(event))


_STATES: Final = [state for name, state in vars(Visitor).items() if not name.startswith("_")]


async def storm(
    address: str, visits: int, seed: int, at_once: int = 24, on_visit: Callable[[], None] = lambda: None
) -> Counter[str]:
    """Visits the adapter at `address` so many times; `on_visit` is called after each.

    Returns how often clients vanished in each state; `cut short` counts those that did not get as far.
    """
    rng = random.Random(seed)
    seen: Counter[str] = Counter()
    room = asyncio.Semaphore(at_once)

    async def visit() -> None:
        name = rng.choice(list(DIALECTS))
        state = rng.choice(_STATES)
        visitor = Visitor(address, DIALECTS[name], random.Random(rng.random()))
        async with room:
            reached = f"{name}, {state.__name__.replace('_', ' ')}"
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await state(visitor)
            except (OSError, WebSocketException, TimeoutError, NotCut) as error:
                reached = f"cut short: {type(error).__name__}"
            seen[reached] += 1
            with suppress(Exception):
                on_visit()

    async with asyncio.TaskGroup() as visits_under_way:
        for _ in range(visits):
            visits_under_way.create_task(visit())
    return seen
