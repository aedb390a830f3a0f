"""The floors: the components of an adapter alone, with nothing around the library.

`python -m benchmarks.adapter.floors websocket` answers every message of 85 KB with one of 128 KB.
`python -m benchmarks.adapter.floors grpc <worker> <sessions>` runs sessions of three gRPC streams each
against a worker, with two units of each session in flight. The lines `go` and `stop` on standard input start
and pause them.
"""

import asyncio
import sys

import grpc.aio
from websockets.asyncio.server import ServerConnection, serve

from antiphon.contract import CLIENT_OPTIONS, METADATA_LEASE, METADATA_SESSION_ID
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import InferenceServiceStub
from benchmarks.load import payload

WINDOW = 2


async def echo(connection: ServerConnection) -> None:
    """Answer each message with a fixed one, without parsing it."""
    while True:
        await connection.recv(decode=False)
        await connection.send(payload.RESULT, text=True)


async def websocket() -> None:
    """Run the plain WebSocket server with the adapter's settings."""
    server = await serve(echo, "127.0.0.1", 0, compression=None, max_size=None, max_queue=4)
    print(f"ready on 127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.wait_closed()


class Session:
    """Three gRPC streams of one session, with at most `WINDOW` units in flight."""

    def __init__(self, stub: InferenceServiceStub, name: str) -> None:
        self.units = 0
        metadata = ((METADATA_SESSION_ID, name), (METADATA_LEASE, ""))
        self._prefill = stub.Prefill(metadata=metadata)
        self._generate = stub.Generate(metadata=metadata)
        self._finalize = stub.Finalize(metadata=metadata)

    async def run(self, go: asyncio.Event) -> None:
        """Send units while `go` is set."""
        for call in (self._prefill, self._generate, self._finalize):
            await call.initial_metadata()
        await self._prefill.write(pb.PrefillRequest(config=pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)))
        await self._prefill.read()
        room = asyncio.Semaphore(WINDOW)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._read(self._prefill))
            group.create_task(self._read(self._generate))
            group.create_task(self._count(room))
            unit = 0
            while True:
                await go.wait()
                await room.acquire()
                unit += 1
                await self._prefill.write(payload.prefill(unit))
                await self._generate.write(payload.generate(unit))
                await self._finalize.write(payload.finalize(unit))

    async def _read(self, call: grpc.aio.StreamStreamCall) -> None:  # type: ignore[type-arg]
        while await call.read() is not grpc.aio.EOF:
            pass

    async def _count(self, room: asyncio.Semaphore) -> None:
        while await self._finalize.read() is not grpc.aio.EOF:
            self.units += 1
            room.release()


async def streams(target: str, sessions: int) -> None:
    """Run the plain gRPC streams: obey the lines `go` and `stop`, and answer `?` with the number of units."""
    async with grpc.aio.insecure_channel(target, options=CLIENT_OPTIONS) as channel:
        stub = InferenceServiceStub(channel)
        go = asyncio.Event()
        running = [Session(stub, f"bare-{number}") for number in range(sessions)]
        tasks = [asyncio.create_task(session.run(go)) for session in running]
        print(f"ready on {target}", flush=True)
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
        )
        while line := (await reader.readline()).strip():
            match line:
                case b"go":
                    go.set()
                case b"stop":
                    go.clear()
                case b"?":
                    print(sum(session.units for session in running), flush=True)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(websocket() if sys.argv[1] == "websocket" else streams(sys.argv[2], int(sys.argv[3])))
