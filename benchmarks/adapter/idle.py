"""Memory of an idle session, compared with an idle WebSocket and three idle gRPC streams."""

import asyncio
from contextlib import ExitStack

from benchmarks.adapter.overload import UNBOUNDED
from benchmarks.load.client import Client, converse
from benchmarks.load.processes import Process, adapter, running
from benchmarks.report import Goal, Report

FIRST = 50
"""The number of connections before the measurement: pools and caches have then grown to their size."""


async def _settled(process: Process) -> int:
    await asyncio.sleep(1.0)
    return process.resident_bytes()


async def _grown(process: Process, connect: object, sessions: int) -> float:
    """Return the growth of memory in KiB for each of `sessions` connections."""
    held = [await connect() for _ in range(FIRST)]  # type: ignore[operator]
    before = await _settled(process)
    held += [await connect() for _ in range(sessions)]  # type: ignore[operator]
    after = await _settled(process)
    for client in held:
        client.transport.abort()
    return (after - before) / sessions / 1024


async def measure(is_short: bool) -> Report:
    """Return the table of goal A5."""
    sessions = 200 if is_short else 1000
    with ExitStack() as stack:
        worker = stack.enter_context(running("benchmarks.load.worker"))
        echo = stack.enter_context(running("benchmarks.adapter.floors", "websocket"))
        websocket = await _grown(
            echo, lambda: Client.connect(echo.port, lambda client, event: None), sessions
        )
        streams = []
        for count in (FIRST, FIRST + sessions):
            bare = stack.enter_context(
                running("benchmarks.adapter.floors", "grpc", worker.address, str(count))
            )
            bare.say("go")
            await asyncio.sleep(0.05)
            bare.say("stop")
            streams.append(await _settled(bare))
        stream = (streams[1] - streams[0]) / sessions / 1024
        process = stack.enter_context(adapter(worker.address, *UNBOUNDED))
        own = await _grown(process, lambda: converse(process.port, lambda client, event: None), sessions)
    floor = websocket + stream
    return Report(
        "idle",
        f"Resident memory of one idle session, mean of {sessions}",
        ("process", "KiB per session", "of the adapter"),
        [
            ("adapter", own, 1.0),
            ("idle WebSocket", websocket, websocket / own),
            ("three idle gRPC streams", stream, stream / own),
            ("both together", floor, floor / own),
        ],
        (Goal("A5 adapter over WebSocket and gRPC streams together", own / floor, 1.2),),
    )
