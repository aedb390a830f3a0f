"""Two adapters as processes on one Redis: one that is stopped or killed, and the other one in front of it."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.conformance.support.client import Client, Event, kind
from tests.conformance.support.stack import Stack, running, scripted_worker, wait_for
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.ws_adapter.server.test_several_adapters import age
from tests.ws_adapter.support.conversation import INIT, append
from tests.ws_adapter.support.process import ADAPTER_OPTIONS

PATH = "/v1/realtime?mode=audio"
REFUSED = ("error:resume_failed", 1008)
BUSY = ("error:service_unavailable", 1013)


def resumed(path: str, token: str, last_event: int) -> str:
    """The target with which a client comes back."""
    return f"{path}&resume={token}&last_event={last_event}"


@asynccontextmanager
async def adapters(
    server: RedisServer, folder: Path, *options: str, count: int = 2, worker: Sequence[str] = ()
) -> AsyncIterator[list[Stack]]:
    """So many adapters, which forward connections to each other, in front of one worker."""
    age(server)
    (folder / "key").write_text("0123456789abcdef0123456789abcdef\n")
    with ExitStack() as exits:
        scripted = exits.enter_context(scripted_worker("--dispatcher", server.url, *worker))
        stacks = []
        for number in range(count):
            process, log = exits.enter_context(
                running(
                    "antiphon_command",
                    *("adapter", "--port", "0", "--dispatcher", server.url, *ADAPTER_OPTIONS),
                    *("--resume-window-s", "60", "--drain-timeout-s", "1"),
                    *("--client-secret-key-file", str(folder / "key")),
                    *("--peer-listen", f"unix:{folder / str(number)}.sock", *options),
                )
            )
            stacks.append(Stack(process, log, wait_for(process, log, "adapter ready on "), scripted))
        for stack in stacks:
            await stack.until(ready=True)
        yield stacks


async def answer_of(stack: Stack, target: str, **options: Any) -> tuple[str, int | None]:
    """Return the kind of a client's first event and the close code; a slow handshake is tried again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with stack.client(target, **options) as client:
                    event = await client.next()
                    await client.socket.wait_closed()
                    return kind(event), client.socket.close_code
            except (OSError, InvalidHandshake, ConnectionClosed):
                continue


@asynccontextmanager
async def coming_back(stack: Stack, target: str, **options: Any) -> AsyncIterator[tuple[Client, Event]]:
    """A client with its first event.

    It tries again as all do: on a busy machine the owner is slow, and one that was killed a moment ago may
    not have closed its socket yet.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < end, f"nobody answers at {target}"
        async with AsyncExitStack() as exits:
            try:
                client = await exits.enter_async_context(stack.client(target, **options))
                first = await client.next()
            except (OSError, InvalidHandshake, ConnectionClosed):
                continue
            if kind(first) != "error:service_unavailable":
                yield client, first
                return


@asynccontextmanager
async def moved(owner: Stack, other: Stack) -> AsyncIterator[tuple[Client, str, int]]:
    """A client that lost a session at `owner` and has it back at `other`, with an answer; its token and how
    many events it has seen."""
    async with owner.client(PATH) as client:
        await client.until("session.queue_done")
        await client.send(INIT)
        token = (await client.until("session.created"))[-1]["resume"]["token"]
        seen = len(client.events)
        client.socket.transport.abort()
    async with coming_back(other, resumed(PATH, token, seen)) as (client, told):
        assert told["type"] == "session.resumed"
        await client.send(append())
        await client.take(1)
        yield client, told["resume"]["token"], seen + 1


async def test_stopped_owner_gives_service_unavailable(redis_server: RedisServer, folder: Path) -> None:
    async with adapters(redis_server, folder) as (owner, other):
        async with moved(owner, other) as (client, token, seen):
            client.socket.transport.abort()
        os.kill(owner.process.pid, signal.SIGSTOP)
        try:
            assert await answer_of(other, resumed(PATH, token, seen)) == BUSY
        finally:
            os.kill(owner.process.pid, signal.SIGCONT)


async def test_owner_that_was_killed_has_no_sessions_any_more(
    redis_server: RedisServer, folder: Path
) -> None:
    async with adapters(redis_server, folder) as (owner, other):
        async with moved(owner, other) as (client, token, seen):
            owner.process.kill()
            async with asyncio.timeout(PATIENCE_S):
                await client.socket.wait_closed()
            assert client.socket.close_code == 1006
        # Its socket may not be closed yet.
        while (answer := await answer_of(other, resumed(PATH, token, seen))) == BUSY:
            pass
        assert answer == REFUSED
