"""A hop between two processes: a TCP proxy whose connections can be cut, held, slowed or kept out."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

CHUNK = 65_536


class Link:
    """Carries bytes between whoever connects to `address`, the near side, and `target`, the far side.

    A `target` of None keeps everybody out. All that is done to it is done to every connection.
    """

    def __init__(self, target: str | None = None, seed: int = 1) -> None:
        self.target = target
        self.address = ""
        self.rng = random.Random(seed)
        self.delay_s = 0.0
        """Of each chunk; one that is lost takes three times as long, as TCP sends it again."""
        self.loss = 0.0
        self._wires: set[_Wire] = set()
        self._opens = asyncio.Event()
        self._opens.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0, limit=CHUNK)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        for wire in self._wires:
            wire.near.transport.abort()
            wire.far.transport.abort()

    def half_open(self) -> None:
        """The near side is told; the far side hears nothing of those connections any more. New ones pass."""
        for wire in self._wires:
            wire.flows.clear()
            wire.near.transport.abort()

    def hold(self) -> None:
        """Nothing passes and nobody is told: what a route into nowhere does."""
        self._opens.clear()
        for wire in self._wires:
            wire.flows.clear()

    def slow(self, delay_s: float, loss: float) -> None:
        self.delay_s, self.loss = delay_s, loss

    def heal(self) -> None:
        """As before; whoever still believes in a connection finds out how it ended."""
        self.delay_s = self.loss = 0.0
        self._opens.set()
        for wire in self._wires:
            wire.flows.set()

    def heal_new(self) -> None:
        self.delay_s = self.loss = 0.0
        self._opens.set()

    async def _connect(self, reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await self._opens.wait()
            if self.target is None:
                near.transport.abort()
                return
            host, port = self.target.rsplit(":", 1)
            far_reader, far = await asyncio.open_connection(host, int(port), limit=CHUNK)
        except OSError:
            near.transport.abort()
            return
        wire = _Wire(self, near, far)
        self._wires.add(wire)
        try:
            with suppress(asyncio.CancelledError):  # by `stop`, and asyncio's server would log it
                await asyncio.gather(wire.carry(reader, far), wire.carry(far_reader, near))
        finally:
            self._wires.discard(wire)
            near.transport.abort()
            far.transport.abort()


class _Wire:
    def __init__(self, link: Link, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near = near
        self.far = far
        self.flows = asyncio.Event()
        self.flows.set()
        self._link = link

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = self._link
        try:
            while data := await reader.read(CHUNK):
                if link.delay_s:
                    await asyncio.sleep(link.delay_s * (3 if link.rng.random() < link.loss else 1))
                await self.flows.wait()
                writer.write(data)
                await writer.drain()
            await self.flows.wait()
            with suppress(OSError, RuntimeError):
                writer.write_eof()
        except OSError:
            await self.flows.wait()
            writer.transport.abort()


@asynccontextmanager
async def link_to(target: str | None) -> AsyncIterator[Link]:
    link = Link(target)
    await link.start()
    try:
        yield link
    finally:
        await link.stop()
