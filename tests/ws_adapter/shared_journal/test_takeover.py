"""Adapters as processes on one Redis: one is killed, and its sessions go on at another one."""

import asyncio
import base64
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from tests.conformance.support.client import Client, Event, kind
from tests.conformance.support.stack import Stack, running, scripted_worker, wait_for
from tests.support.long import long
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.support.scrape import scrape
from tests.ws_adapter.resume.test_resuming import OPENERS
from tests.ws_adapter.support.backend import age
from tests.ws_adapter.support.conversation import INIT, append
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.process import ADAPTER_OPTIONS
from tests.ws_adapter.support.stage import until
from ws_adapter.session.journal_writer import SavedSession
from ws_adapter.shared_journal.journals import LIFE_S
from ws_adapter.shared_journal.link import PREFIX
from ws_adapter.shared_journal.record import State, encode

PATH = "/v1/realtime?mode=audio"
REFUSED = ("error:resume_failed", 1008)
BUSY = ("error:service_unavailable", 1013)


def resumed(path: str, token: str, last_event: int) -> str:
    """The target with which a client comes back."""
    return f"{path}&resume={token}&last_event={last_event}"


@asynccontextmanager
async def adapters(
    server: RedisServer,
    folder: Path,
    count: int = 2,
    slots: int = 4,
    options: Sequence[str] = ("--journal", "redis"),
    worker: Sequence[str] = ("--script", "talk"),
) -> AsyncIterator[list[Stack]]:
    """So many adapters with these `options`, each with an administration, in front of one worker."""
    age(server)
    (folder / "key").write_text("0123456789abcdef0123456789abcdef\n")
    with ExitStack() as exits:
        its_options = ("--replays", *worker, "--slots", str(slots))
        scripted = exits.enter_context(scripted_worker("--dispatcher", server.url, *its_options))
        stacks = []
        for number in range(count):
            process, log = exits.enter_context(
                running(
                    *("antiphon_command", "adapter", "--port", "0", "--admin-port", "0"),
                    *("--dispatcher", server.url, *ADAPTER_OPTIONS, "--silence-tail-units", "0"),
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


async def metric(stack: Stack, name: str, **labels: str) -> float:
    address = wait_for(stack.process, stack.log, "adapter administration on ")
    return (await scrape(int(address.rpartition(":")[2]))).value(name, **labels) or 0.0


async def until_written(stack: Stack) -> None:
    """Wait until Redis has all journals of an adapter."""
    async with asyncio.timeout(PATIENCE_S):
        while await metric(stack, "antiphon_journals_behind"):
            pass


def without_times(event: Event) -> Event:
    """An event without what differs from one sending to the next."""
    differing = ("server_send_ts", "wall_clock_ms", "metrics")
    return {name: value for name, value in event.items() if name not in differing}


async def unit(client: Client) -> None:
    """Send a second and wait for the end of its answer."""
    await client.send(append())
    while kind(event := await client.next()) == "text" or event.get("reason") == "turn_end":
        pass


async def created(client: Client) -> str:
    """Begin a session; return its token."""
    await client.until("session.queue_done")
    await client.send(INIT)
    return str((await client.until("session.created"))[-1]["resume"]["token"])


async def begun(stack: Stack, seconds: int = 1) -> tuple[str, int]:
    """Begin a session and lose its connection after some seconds; return its token and its last event."""
    async with stack.client(PATH) as client:
        token = await created(client)
        for _ in range(seconds):
            await unit(client)
        seen = len(client.events)
        await until_written(stack)
        client.socket.transport.abort()
    return token, seen


async def end(stack: Stack) -> None:
    """Kill an adapter, and wait until it is gone."""
    stack.process.kill()
    await asyncio.to_thread(stack.process.wait)


@pytest.mark.parametrize("path", OPENERS)
@pytest.mark.sample("/v1/realtime?mode=audio")
async def test_session_of_killed_adapter_resumes_elsewhere_with_missed_events(
    path: str, redis_server: RedisServer, folder: Path
) -> None:
    name, opener, input_event = OPENERS[path]
    async with adapters(redis_server, folder) as (owner, other):
        async with owner.client(path) as client:
            await client.send(opener)
            created = (await client.until(name))[-1]
            await client.send(input_event, input_event, input_event)
            await client.take(1)
            seen = len(client.events)
            missed = [without_times(event) for event in await client.take(2)]
            await end(owner)
        target = resumed(path, created["resume"]["token"], seen)
        async with coming_back(other, target) as (client, told):
            assert (told["type"], told["last_event"], told["received"]) == ("session.resumed", seen, 4)
            assert [without_times(event) for event in await client.take(2)] == missed
            client.ignored.add("session.moved")
            await client.send(input_event)
            assert (await client.next())["type"] == missed[-1]["type"]
            await client.send(input_event)
            await client.next()
        assert await metric(other, "antiphon_resumes_total", outcome="taken_over") == 1


async def test_killed_adapter_without_a_journal_has_no_sessions_any_more(
    redis_server: RedisServer, folder: Path
) -> None:
    async with adapters(redis_server, folder, options=()) as (owner, other):
        async with owner.client(PATH) as client:
            token = await created(client)
            seen = len(client.events)
            client.socket.transport.abort()
        async with coming_back(other, resumed(PATH, token, seen)) as (client, told):
            assert told["type"] == "session.resumed"
            await client.send(append())
            await client.take(1)
            await end(owner)
            async with asyncio.timeout(PATIENCE_S):
                await client.socket.wait_closed()
            assert client.socket.close_code == 1006
        # Its socket may not be closed yet.
        target = resumed(PATH, told["resume"]["token"], seen + 1)
        while (answer := await answer_of(other, target)) == BUSY:
            pass
        assert answer == REFUSED


async def test_live_session_goes_on_in_the_middle_of_an_answer(
    redis_server: RedisServer, folder: Path
) -> None:
    path, spoken = "/v1/live/sessions?", "session.output_transcript.delta"
    second = {"type": "session.input_audio.append", "audio": base64.b64encode(bytes(48_000)).decode()}
    async with adapters(redis_server, folder) as (owner, other):
        async with owner.client(path) as client:
            await client.send({"type": "session.start", "session": {"model": "scripted"}})
            token = (await client.until("session.started"))[-1]["resume"]["token"]
            await client.send(second, second, second)
            await client.until(spoken)
            events = list(client.events)
            await end(owner)
        async with coming_back(other, resumed(path, token, len(events))) as (client, told):
            assert (told["type"], told["received"]) == ("session.resumed", 4)
            await client.send(second, second)
            while not words(events).endswith("you?"):
                events.append(await client.next())
    assert words(events) == "Hello there how are you?"
    times = [(event["start_ms"], event["end_ms"]) for event in events if event["type"] == spoken]
    assert times == sorted(times)
    ids = [event["event_id"] for event in events if "event_id" in event]
    assert len(ids) == len(set(ids))
    heard = sum(event["type"] == "session.output_audio.delta" for event in events) * 200
    assert heard >= times[-1][0], "no sound was left out before the last word"


def words(events: list[Event]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "session.output_transcript.delta")


async def test_tokens_that_open_nothing_get_one_error_after_the_death_of_their_adapter(
    redis_server: RedisServer, folder: Path
) -> None:
    async with adapters(redis_server, folder) as (owner, other):
        token, seen = await begun(owner)
        await end(owner)
        forged = token[:-1] + ("A" if token[-1] != "A" else "B")
        for target in (
            resumed(PATH, forged, seen),
            resumed("/v1/realtime?mode=video", token, seen),
            resumed(PATH, token, seen + 1),
            resumed(PATH, token, "x"),
        ):
            assert await answer_of(other, target) == REFUSED
        async with coming_back(other, resumed(PATH, token, seen)) as (client, told):
            assert told["type"] == "session.resumed"
            await client.send(append())
            await client.take(2)
            assert await answer_of(other, resumed(PATH, token, seen)) == REFUSED, "it is used"
            (session,) = sessions_in(redis_server)
        key = f"{PREFIX}session:{session}"
        await until(lambda: b"over" in redis_server.command("HKEYS", key))


async def test_token_of_another_key_opens_nothing_after_the_death_of_its_adapter(
    redis_server: RedisServer, folder: Path
) -> None:
    """Also with everything else right; the session is then still there for its own key."""
    keys = KeyFile(folder / "keys", "own", "another")
    own, another = ({"additional_headers": keys.bearer(name)} for name in ("own", "another"))
    options = ("--journal", "redis", "--auth", "keys", "--keys", str(keys.path))
    async with adapters(redis_server, folder, options=options) as (owner, other):
        async with owner.client(PATH, **own) as client:
            token = await created(client)
            await unit(client)
            seen = len(client.events)
            await end(owner)
        target = resumed(PATH, token, seen)
        for _ in range(2):
            assert await answer_of(other, target, **another) == REFUSED
        async with coming_back(other, target, **own) as (_, told):
            assert told["type"] == "session.resumed"


async def test_garbage_in_place_of_a_state_costs_its_session_alone(
    redis_server: RedisServer, folder: Path
) -> None:
    """An attacker who can write to Redis can end a session, and harms no adapter."""
    states = (b"", b"\xc1", encode(SavedSession(3, b"\x90", None)), encode([3, {"x": 1}, None]))
    async with adapters(redis_server, folder, slots=8) as (owner, other):
        known: set[str] = set()
        tokens: list[tuple[str, int]] = []
        for state in states:
            tokens.append(await begun(owner))
            (session,) = sessions_in(redis_server) - known
            known.add(session)
            entry = ("XADD", f"{PREFIX}stream:{session}", "*", "d", encode(State(state)))
            assert redis_server.command(*entry).startswith(b"$")
        whole = await begun(owner)
        await end(owner)
        for token, seen in tokens:
            assert await answer_of(other, resumed(PATH, token, seen)) == REFUSED
            assert await answer_of(other, resumed(PATH, token, seen)) == REFUSED
        assert "Traceback" not in other.log.text
        async with coming_back(other, resumed(PATH, *whole)) as (_, told):
            assert told["type"] == "session.resumed"


def sessions_in(server: RedisServer) -> set[str]:
    """The ids of the sessions that Redis has a journal of."""
    keys = server.command("KEYS", f"{PREFIX}stream:*").split()
    return {key.decode().removeprefix(f"{PREFIX}stream:") for key in keys if key.startswith(PREFIX.encode())}


async def test_one_of_many_clients_with_the_same_token_gets_the_session(
    redis_server: RedisServer, folder: Path
) -> None:
    """At two adapters at once: whoever comes second finds it taken."""
    async with adapters(redis_server, folder, count=3) as (owner, second, third):
        token, seen = await begun(owner)
        await end(owner)

        async def attempt(stack: Stack) -> str:
            try:
                async with stack.client(resumed(PATH, token, seen)) as client:
                    told = kind(await client.next())
                    if told == "session.resumed":
                        await client.send(append())
                        await client.take(2)
                    return told
            except (OSError, InvalidHandshake, ConnectionClosed):
                return "nothing"

        told = await asyncio.gather(*(attempt(stack) for stack in [second, third] * 8))
        assert told.count("session.resumed") == 1
        assert set(told) <= {"session.resumed", "error:resume_failed", "error:service_unavailable"}
        taken = [
            await metric(stack, "antiphon_resumes_total", outcome="taken_over") for stack in (second, third)
        ]
        assert sum(taken) == 1


@long
async def test_frozen_adapter_loses_its_session_to_another_one_and_ends_its_own_copy(
    redis_server: RedisServer, folder: Path
) -> None:
    async with adapters(redis_server, folder, slots=2) as (owner, other):
        token, seen = await begun(owner)
        os.kill(owner.process.pid, signal.SIGSTOP)
        try:
            async with coming_back(other, resumed(PATH, token, seen)) as (client, told):
                assert told["type"] == "session.resumed"
                assert (await client.next())["type"] == "session.moved"
                os.kill(owner.process.pid, signal.SIGCONT)
                await asyncio.to_thread(owner.log.wait_for, "another adapter has taken it over", 1)
                await client.send(append())
                await client.next()
        finally:
            os.kill(owner.process.pid, signal.SIGCONT)
        await asyncio.to_thread(other.wait_until_nothing_runs)


async def test_session_goes_on_while_redis_is_away_and_its_journal_is_whole_again_afterwards(
    redis_server: RedisServer, folder: Path
) -> None:
    async with adapters(redis_server, folder) as (owner, other):
        async with owner.client(PATH) as client:
            token = await created(client)
            redis_server.pause()
            begin = time.monotonic()
            while time.monotonic() < begin + LIFE_S:
                await unit(client)
            assert await metric(owner, "antiphon_journals_behind") == 1
            redis_server.resume()
            redis_server.stop(keep_data=False)
            await unit(client)
            seen = len(client.events)
            redis_server.start()
            age(redis_server)
            await until_written(owner)
            assert await metric(owner, "antiphon_journal_gaps_total") >= 1
            await owner.until(ready=True)
            await other.until(ready=True)
            await end(owner)
        async with coming_back(other, resumed(PATH, token, seen)) as (client, told):
            assert told["type"] == "session.resumed"
            await client.until("session.moved")


async def test_resume_after_adapter_and_redis_loss_is_busy_then_rejected(
    redis_server: RedisServer, folder: Path
) -> None:
    async with adapters(redis_server, folder) as (owner, other):
        token, seen = await begun(owner)
        await end(owner)
        redis_server.stop(keep_data=False)
        assert await answer_of(other, resumed(PATH, token, seen)) == BUSY
        redis_server.start()
        assert await answer_of(other, resumed(PATH, token, seen)) in (BUSY, REFUSED)
        async with asyncio.timeout(PATIENCE_S):
            while await answer_of(other, resumed(PATH, token, seen)) != REFUSED:
                pass
