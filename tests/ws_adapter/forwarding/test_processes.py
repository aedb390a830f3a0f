"""Two adapters as processes on one Redis: one that is stopped or killed, and the other one in front of it."""

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.conformance.support.client import Client, Event, kind
from tests.conformance.support.stack import Stack, running, scripted_worker, wait_for
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.ws_adapter.resume.test_resuming import OPENERS
from tests.ws_adapter.server.test_several_adapters import age
from tests.ws_adapter.support.conversation import INIT, append
from tests.ws_adapter.support.process import ADAPTER_OPTIONS

PATH = "/v1/realtime?mode=audio"


@dataclass(frozen=True)
class Pair:
    """Two adapters: sessions begin at `owner`, and their clients come back at `other`."""

    owner: Stack
    other: Stack


def resumed(path: str, token: str, last_event: int) -> str:
    """The target with which a client comes back."""
    return f"{path}&resume={token}&last_event={last_event}"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: that of a Unix socket in it has room for a hundred characters."""
    with tempfile.TemporaryDirectory(prefix="forward-") as path:
        yield Path(path)


@asynccontextmanager
async def pair(server: RedisServer, folder: Path) -> AsyncIterator[Pair]:
    age(server)
    (folder / "key").write_text("0123456789abcdef0123456789abcdef\n")
    with ExitStack() as exits:
        worker = exits.enter_context(scripted_worker("--dispatcher", server.url))
        stacks = []
        for name in ("owner", "other"):
            process, log = exits.enter_context(
                running(
                    "antiphon_command",
                    *("adapter", "--port", "0", "--dispatcher", server.url, *ADAPTER_OPTIONS),
                    *("--resume-window-s", "60", "--drain-timeout-s", "1"),
                    *("--client-secret-key-file", str(folder / "key")),
                    *("--peer-listen", f"unix:{folder / name}.sock"),
                )
            )
            stacks.append(Stack(process, log, wait_for(process, log, "adapter ready on "), worker))
        for stack in stacks:
            await stack.until(ready=True)
        yield Pair(*stacks)


async def moved_session(two: Pair) -> tuple[str, int]:
    """The token of a session that was lost at its owner, and how many events its client has seen."""
    async with two.owner.client(PATH) as client:
        await client.until("session.queue_done")
        await client.send(INIT)
        token = (await client.until("session.created"))[-1]["resume"]["token"]
        seen = len(client.events)
        client.socket.transport.abort()
    return token, seen


async def answer_of(stack: Stack, target: str) -> tuple[str, int | None]:
    """Return the kind of a client's first event and the close code; a slow handshake is tried again."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with stack.client(target) as client:
                    event = await client.next()
                    await client.socket.wait_closed()
                    return kind(event), client.socket.close_code
            except (OSError, InvalidHandshake, ConnectionClosed):
                continue


@asynccontextmanager
async def coming_back(stack: Stack, target: str) -> AsyncIterator[tuple[Client, Event]]:
    """A client with its first event.

    It tries again as all do: on a busy machine the owner is slow, and one that was killed a moment ago may
    not have closed its socket yet.
    """
    end = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < end, f"nobody answers at {target}"
        async with AsyncExitStack() as exits:
            try:
                client = await exits.enter_async_context(stack.client(target))
                first = await client.next()
            except (OSError, InvalidHandshake, ConnectionClosed):
                continue
            if kind(first) != "error:service_unavailable":
                yield client, first
                return


@pytest.mark.parametrize("path", OPENERS)
@pytest.mark.sample("/v1/realtime?mode=audio")
async def test_session_resumes_at_other_process_with_missed_events(
    path: str, redis_server: RedisServer, folder: Path
) -> None:
    name, opener, input_event = OPENERS[path]
    async with pair(redis_server, folder) as two:
        async with two.owner.client(path) as client:
            await client.send(opener)
            created = (await client.until(name))[-1]
            await client.send(input_event, input_event, input_event)
            await client.take(1)
            seen = len(client.events)
            missed = await client.take(2)
            client.socket.transport.abort()
        target = resumed(path, created["resume"]["token"], seen)
        async with coming_back(two.other, target) as (client, told):
            assert (told["type"], told["last_event"], told["received"]) == ("session.resumed", seen, 4)
            assert await client.take(2) == missed
            await client.send(input_event)
            assert (await client.next())["type"] == missed[-1]["type"]


async def test_stopped_owner_gives_service_unavailable(redis_server: RedisServer, folder: Path) -> None:
    async with pair(redis_server, folder) as two:
        token, seen = await moved_session(two)
        async with coming_back(two.other, resumed(PATH, token, seen)) as (client, told):
            assert told["type"] == "session.resumed"
            token = told["resume"]["token"]
            await client.send(append())
            await client.take(1)
            client.socket.transport.abort()
        os.kill(two.owner.process.pid, signal.SIGSTOP)
        try:
            answer = await answer_of(two.other, resumed(PATH, token, seen + 1))
            assert answer == ("error:service_unavailable", 1013)
        finally:
            os.kill(two.owner.process.pid, signal.SIGCONT)


async def test_owner_that_was_killed_has_no_sessions_any_more(
    redis_server: RedisServer, folder: Path
) -> None:
    async with pair(redis_server, folder) as two:
        token, seen = await moved_session(two)
        async with coming_back(two.other, resumed(PATH, token, seen)) as (client, told):
            assert told["type"] == "session.resumed"
            token = told["resume"]["token"]
            await client.send(append())
            await client.take(1)
            two.owner.process.kill()
            async with asyncio.timeout(PATIENCE_S):
                await client.socket.wait_closed()
            assert client.socket.close_code == 1006
        async with coming_back(two.other, resumed(PATH, token, seen + 1)) as (client, told):
            assert kind(told) == "error:resume_failed"
            async with asyncio.timeout(PATIENCE_S):
                await client.socket.wait_closed()
            assert client.socket.close_code == 1008
