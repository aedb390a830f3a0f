"""Everything for a real conversation on loopback: an adapter, clients, and a clock that a test can turn."""

import asyncio
import heapq
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from antiphon_service.semconv import SERVICE_ADAPTER
from antiphon_service.telemetry.providers import Telemetry, start
from tests.support.patience import PATIENCE_S
from tests.support.schemas import Observer
from tests.support.scripted_engine import ScriptedEngine, running_worker
from tests.ws_adapter.support.conversation import INIT, Event
from ws_adapter.app import Adapter
from ws_adapter.options import AdapterOptions
from ws_adapter.process.clock import Clock, LoopClock, Timer


@dataclass(order=True)
class _Due:
    when: float
    number: int
    callback: Callable[[], None] = field(compare=False)
    is_cancelled: bool = field(default=False, compare=False)

    def cancel(self) -> None:
        self.is_cancelled = True


class ManualClock:
    """A clock that stands still until it is advanced."""

    def __init__(self) -> None:
        self._now = 5000.0
        self._due: list[_Due] = []
        self._numbers = itertools.count()

    def now(self) -> float:
        return self._now

    def unix(self) -> float:
        return 1_795_159_650.0 + self._now

    def call_at(self, when: float, callback: Callable[[], None]) -> Timer:
        due = _Due(when, next(self._numbers), callback)
        heapq.heappush(self._due, due)
        return due

    @property
    def timers(self) -> int:
        return sum(not due.is_cancelled for due in self._due)

    async def advance(self, seconds: float) -> None:
        """Lets time pass; whatever is due meanwhile happens, in order, each before the next."""
        until = self._now + seconds
        while self._due and self._due[0].when <= until:
            due = heapq.heappop(self._due)
            self._now = max(self._now, due.when)
            if not due.is_cancelled:
                due.callback()
                await self._let_others_run()
        self._now = until
        await self._let_others_run()

    async def _let_others_run(self) -> None:
        """Yield long enough for every woken task to reach its next wait."""
        for _ in range(10):
            await asyncio.sleep(0)


async def until(condition: Callable[[], Any], seconds: float = PATIENCE_S) -> None:
    """Wait for `condition` and fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        await asyncio.sleep(0.005)


class Client:
    """A WebSocket client that records everything it receives."""

    def __init__(self, socket: ClientConnection) -> None:
        assert socket.request is not None
        self.socket = socket
        self.events: list[Event] = []
        self.observer = Observer(socket.request.path)

    async def send(self, *events: Event) -> None:
        for event in events:
            self.observer.client_said(event)
            await self.socket.send(json.dumps(event))

    async def next(self) -> Event:
        async with asyncio.timeout(PATIENCE_S):
            frame = await self.socket.recv()
        assert isinstance(frame, str), "text frames only"
        event: Event = json.loads(frame)
        self.observer.server_said(event)
        self.events.append(event)
        return event

    async def expect(self, *names: str) -> Event:
        """Reads one event for each name, which is its type, or the kind of a delta; returns the last."""
        event: Event = {}
        for name in names:
            event = await self.next()
            assert name in (event["type"], event.get("kind")), event
        return event

    async def expect_until(self, name: str) -> Event:
        """Read up to the first event of this type."""
        while (event := await self.next())["type"] != name:
            assert event["type"] != "error", event
        return event

    async def begin(self, payload: Event | None = None) -> Event:
        """Bring the session to `session.created`; return that event."""
        await self.expect("session.queue_done")
        await self.send({**INIT, "payload": payload or {}})
        return await self.expect("session.created")

    async def rest(self) -> list[Event]:
        """Return all further events up to the end of the connection."""
        start = len(self.events)
        try:
            while True:
                await self.next()
        except ConnectionClosed:
            return self.events[start:]

    @property
    def close_code(self) -> int | None:
        return self.socket.close_code

    async def end(self) -> tuple[list[Event], int | None]:
        """Return the remaining events and the close code."""
        return await self.rest(), self.close_code

    def vanish(self) -> None:
        """Abort the connection without a Close frame."""
        self.socket.transport.abort()


@dataclass
class Stage:
    """A running adapter."""

    address: str
    adapter: Adapter
    clock: Clock
    task: "asyncio.Task[int]"
    telemetry: Telemetry
    tls_address: str = ""

    @property
    def url(self) -> str:
        return self.at("/v1/realtime?mode=audio")

    def at(self, path: str) -> str:
        """The address of WebSockets at a path."""
        return self.address.replace("http://", "ws://") + path

    async def request(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes = b""
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and JSON body of an HTTP request."""
        lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        lines += [f"Content-Length: {len(body)}"] * bool(body)
        head, _, body = (await self.exchange("\r\n".join([*lines, "", ""]).encode() + body)).partition(
            b"\r\n\r\n"
        )
        status, *lines = head.decode().split("\r\n")
        told = dict(line.lower().split(": ", 1) for line in lines)
        return int(status.split()[1]), told, json.loads(body) if body else None

    async def opened(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection without a protocol, on which `data` was sent."""
        host, port = self.address.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        return reader, writer

    async def exchange(self, data: bytes, port: int | None = None) -> bytes:
        """Return the whole answer to `data`, from the public port or another one of this machine."""
        if port is None:
            reader, writer = await self.opened(data)
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            told = await reader.read()
        writer.close()
        return told

    async def until(self, **state: Any) -> None:
        """Wait until `/readyz` answers this."""
        deadline = time.monotonic() + PATIENCE_S
        while not state.items() <= (told := (await self.request("/readyz"))[2]).items():
            assert time.monotonic() < deadline, f"{told} never became {state}"
            await asyncio.sleep(0.01)

    async def until_queue(self, length: int) -> None:
        """Wait until this many clients wait for a slot."""
        async with asyncio.timeout(PATIENCE_S):
            while (await self.request("/api/queue"))[2]["queue_length"] != length:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    @asynccontextmanager
    async def client(self, url: str | None = None, **options: Any) -> AsyncIterator[Client]:
        """A client at `url`, which may be a path of this adapter."""
        if url and url.startswith("/"):
            url = self.at(url)
        # The server, not this client, has to notice that its peer is gone.
        options = {
            "max_size": None,
            "compression": None,
            "close_timeout": 1,
            "ping_interval": None,
            **options,
        }
        async with connect(url or self.url, **options) as socket:
            client = Client(socket)
            yield client
            client.observer.end()


@asynccontextmanager
async def running_adapter(
    *workers: str,
    clock: Clock | None = None,
    wait: bool = True,
    telemetry: Telemetry | None = None,
    **options: Any,
) -> AsyncIterator[Stage]:
    """An adapter on a free port of loopback, ended at once on leaving the block.

    With `wait` it knows a worker already. It is not traced unless `telemetry` does that.
    """
    telemetry = telemetry or start(SERVICE_ADAPTER, {})
    clock = clock or LoopClock()
    # The process of the tests is busy with other things than the adapter.
    # A client that vanishes does so for good, except where a test says how long it may stay away.
    options = {
        "max_cpu": 0,
        "max_loop_lag_ms": 0,
        "port": 0,
        "resume_window_s": 0,
        "handshakes_per_s": 0,
        **options,
    }
    adapter = Adapter(AdapterOptions(workers=workers, **options), clock, telemetry)
    addresses: list[str] = []
    task = asyncio.create_task(adapter.run(addresses.append))
    try:
        await until(lambda: addresses or task.done())
        if task.done():
            task.result()
        stage = Stage(addresses[0], adapter, clock, task, telemetry, *addresses[1:])
        if wait:
            await stage.until(ready=True)
        yield stage
    finally:
        adapter.interrupt()
        adapter.interrupt()
        await asyncio.wait({task}, timeout=PATIENCE_S)
        assert task.done(), "the adapter did not stop"
        assert task.result() == 0


@asynccontextmanager
async def serving(
    engine: ScriptedEngine, worker_options: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[Stage]:
    """An adapter in front of a worker that plays `engine`."""
    async with running_worker(engine, slots=engine.slots, **(worker_options or {})) as worker:
        async with running_adapter(worker.address, **options) as stage:
            yield stage


@asynccontextmanager
async def client_of(
    engine: ScriptedEngine, clock: Clock | None = None, **options: Any
) -> AsyncIterator[Client]:
    """A client in front of an adapter in front of a worker that plays `engine`."""
    async with serving(engine, clock=clock, **options) as stage, stage.client() as client:
        yield client
