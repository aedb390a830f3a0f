"""Peers that would exhaust the administration port: a scrape and a session go on meanwhile."""

import asyncio
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from antiphon_service.telemetry.providers import Telemetry
from inference_service.observability import admin
from inference_service.observability.admin import LONGEST_HEAD, MOST_CONNECTIONS
from tests.inference_service.support.caller import Caller, channel_to
from tests.support.patience import PATIENCE_S
from tests.support.scrape import get
from tests.support.scripted_engine import ScriptedEngine, running_worker, telemetry

IDLE = 1000
LARGE = 16 << 20
"""Bytes of an answer that no socket buffer takes whole."""
ESTABLISHED, CLOSE_WAIT = "01", "08"


@pytest.fixture(autouse=True)
def files() -> Iterator[None]:
    """Allow as many sockets as an attack opens, at both ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = 4 * IDLE if hard == resource.RLIM_INFINITY else min(4 * IDLE, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, enough), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@dataclass
class Attacked:
    """A worker with a session that is open during the attack."""

    port: int
    caller: Caller
    units: int = 0
    peers: list[socket.socket] = field(default_factory=list)
    """Closed at the end."""

    async def dial(self) -> socket.socket:
        """Connect with a small receive buffer, so that little of an answer leaves the worker unread."""
        self.peers.append(peer := socket.socket())
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", self.port))
        return peer

    def held(self) -> int:
        """Return how many connections the worker's end of the administration port holds."""
        rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
        return sum(
            row[1].endswith(f":{self.port:04X}") and row[3] in (ESTABLISHED, CLOSE_WAIT) for row in rows
        )

    async def until_held(self, most: int) -> None:
        """Wait until the worker holds at most `most` connections."""
        async with asyncio.timeout(PATIENCE_S):
            while self.held() > most:
                await self.check()

    async def check(self) -> None:
        """Check that a scrape and a unit of the session are answered."""
        page = await get(self.port, "/metrics")
        assert (page.status, "antiphon_build_info" in page.body) == (200, True)
        self.units += 1
        await self.caller.unit(self.units)


@asynccontextmanager
async def attacked(observed: Telemetry | None = None) -> AsyncIterator[Attacked]:
    async with running_worker(ScriptedEngine(), observed=observed, admin_port=0) as worker:
        async with channel_to(worker.address) as channel:
            caller = await Caller(channel).ready()
            assert worker.worker.admin_port is not None
            found = Attacked(worker.worker.admin_port, caller)
            try:
                yield found
            finally:
                for peer in found.peers:
                    peer.close()


async def test_idle_connections_beyond_the_bound_close_the_oldest() -> None:
    async with attacked() as worker:
        for _ in range(IDLE):
            await worker.dial()
        await worker.check()
        assert worker.held() <= MOST_CONNECTIONS
        await worker.check()


async def test_idle_connection_is_closed_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "CONNECTION_S", 0.05)
    async with attacked() as worker:
        peer = await worker.dial()
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.get_running_loop().sock_recv(peer, 1) == b""
        monkeypatch.undo()
        await worker.check()


async def test_byte_by_byte_request_is_closed_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "CONNECTION_S", 0.2)
    async with attacked() as worker:
        loop, peer = asyncio.get_running_loop(), await worker.dial()
        monkeypatch.undo()
        await loop.sock_sendall(peer, b"GET /metrics HTTP/1.1\r\nA: ")
        closed = asyncio.ensure_future(loop.sock_recv(peer, 1))
        async with asyncio.timeout(PATIENCE_S):
            while not closed.done():
                try:
                    await loop.sock_sendall(peer, b"a")
                except ConnectionError:
                    break
                await worker.check()
            assert await asyncio.gather(closed, return_exceptions=True) != [b"H"]


async def test_request_line_of_megabytes_is_cut_off() -> None:
    async with attacked() as worker:
        loop, peer = asyncio.get_running_loop(), await worker.dial()
        sent = 0
        async with asyncio.timeout(PATIENCE_S):
            with suppress(ConnectionError):
                await loop.sock_sendall(peer, b"GET /")
                while sent < LARGE:
                    await loop.sock_sendall(peer, b"a" * LONGEST_HEAD)
                    sent += LONGEST_HEAD
        assert sent < LARGE
        await worker.check()


class Large(Telemetry):
    """Telemetry with so many series that its page fills every buffer."""

    def exposition(self) -> bytes:
        return super().exposition() + b"# " + bytes(LARGE).replace(b"\0", b"x") + b"\n"


async def test_reader_that_never_reads_is_closed_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    observed = Large(**vars(telemetry()))
    monkeypatch.setattr(admin, "CONNECTION_S", 1.0)
    async with attacked(observed) as worker:
        loop = asyncio.get_running_loop()
        for _ in range(4):
            await loop.sock_sendall(await worker.dial(), b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        monkeypatch.undo()
        await worker.check()
        await worker.until_held(0)
        await worker.check()


async def test_scrapes_at_the_same_time_share_one_exposition() -> None:
    counted = 0

    class Counting(Telemetry):
        def exposition(self) -> bytes:
            nonlocal counted
            counted += 1
            return super().exposition()

    observed = Counting(**vars(telemetry()))
    async with attacked(observed) as worker:
        pages = await asyncio.gather(*(get(worker.port, "/metrics") for _ in range(MOST_CONNECTIONS // 2)))
        assert len({page.body for page in pages}) <= counted < MOST_CONNECTIONS // 2
