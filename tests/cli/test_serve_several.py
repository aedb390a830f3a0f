"""Tests of `antiphon serve` with several processes: supervision, rolling restart, shutdown."""

import asyncio
import json
import os
import signal
import urllib.request
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

import antiphon
from antiphon.session.duplex import DuplexSession
from tests.cli.support.process import run_cli
from tests.cli.support.processes import Serve, serving, wait_until
from tests.cli.test_serve import SECOND, one_turn
from tests.support.long import long
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import INSTALLED, MISSING
from tests.support.scrape import Scrape
from tests.ws_adapter.support.conversation import INIT, append

WORKERS = ("--workers", "2")


def descriptors(serve: Serve) -> int:
    return len(os.listdir(f"/proc/{serve.process.pid}/fd"))


@pytest.mark.long
def test_sessions_use_all_workers_and_a_killed_worker_restarts(tmp_path: Path) -> None:
    async def talk_to_each() -> None:
        """Each of two workers has two slots: four sessions at once need them both."""
        url = serve.address("WebSocket")
        async with antiphon.connect(url) as client, AsyncExitStack() as sessions:
            for _ in range(4):
                await sessions.enter_async_context(client.duplex())

    with serving(tmp_path, "talk", *WORKERS) as serve:
        assert "4 slots of 2 workers" in serve.banner.splitlines()[0]
        assert len(serve.addresses("gRPC")) == 2
        asyncio.run(talk_to_each())
        before = descriptors(serve)
        for pid in sorted(serve.pids("worker")):
            os.kill(pid, signal.SIGKILL)
        for number in (1, 2):
            told = f"The worker {number} is ready again."
            wait_until(lambda told=told: told in serve.errors, told)  # type: ignore[misc]
        asyncio.run(talk_to_each())
        wait_until(lambda: descriptors(serve) <= before, "what the dead had is closed")

        serve.stop()


async def unit(session: DuplexSession) -> None:
    """A second is sent, and something is answered."""
    await session.send_audio(SECOND)
    async with asyncio.timeout(PATIENCE_S):
        await anext(session)


async def until_running(serve: Serve, command: str, count: int) -> None:
    await asyncio.to_thread(wait_until, lambda: len(serve.pids(command)) == count, f"{count} run {command}")


async def talk_during_rolling_restart(serve: Serve) -> None:
    """Each old process has a session while the next one serves already, and lets it end when it likes."""
    url = serve.address("WebSocket")
    async with antiphon.connect(url) as client:
        async with client.duplex() as first, client.duplex() as second:  # one on each worker
            await unit(first)
            await unit(second)
            serve.signal(signal.SIGUSR1)
            await until_running(serve, "worker", 3)
            await unit(first)
            await unit(second)
            assert await one_turn(url) == "Hello there how are you?"
        await asyncio.to_thread(wait_until, lambda: "The adapter is replaced." in serve.errors, "its turn")
        async with client.duplex() as third:
            await unit(third)
            await until_running(serve, "adapter", 2)
            await unit(third)


def test_sigusr1_replaces_all_processes_while_conversations_continue(tmp_path: Path) -> None:
    with serving(tmp_path, "talk", *WORKERS, "--drain-timeout-s", "120") as serve:
        before = serve.pids("worker") | serve.pids("adapter")
        asyncio.run(talk_during_rolling_restart(serve))
        wait_until(lambda: "All have been replaced." in serve.errors, "it says so")

        after = serve.pids("worker") | serve.pids("adapter")
        assert len(after) == 3
        assert not before & after
        assert asyncio.run(one_turn(serve.address("WebSocket"))) == "Hello there how are you?"
        serve.stop()


@pytest.mark.long
def test_rolling_restart_with_failed_start_replaces_no_process(tmp_path: Path) -> None:
    with serving(tmp_path, "talk") as serve:
        before = serve.pids("worker") | serve.pids("adapter")
        (tmp_path / "fault").touch()
        serve.signal(signal.SIGUSR1)
        wait_until(lambda: "The running one stays." in serve.errors, "it says so")
        (tmp_path / "fault").unlink()

        wait_until(lambda: serve.pids("worker") | serve.pids("adapter") == before, "only those are left")
        assert asyncio.run(one_turn(serve.address("WebSocket"))) == "Hello there how are you?"
        serve.stop()


ADAPTERS = (*WORKERS, "--adapters", "2", "--admin-port", "0")


def pages(serve: Serve, name: str) -> list[str]:
    """A page of each adapter's administration port."""
    found = []
    for address in serve.addresses("Status"):
        with urllib.request.urlopen(f"{address}{name}", timeout=PATIENCE_S) as answer:
            found.append(answer.read().decode())
    return found


def held_by(serve: Serve) -> list[int]:
    """How many sessions each adapter has."""
    return [int(json.loads(page)["sessions"]) for page in pages(serve, "status.json")]


def restarted_count(serve: Serve) -> int:
    """How many processes the status page says were killed and are ready again."""
    return sum(
        process["state"] == "ready" and process["restarts"] == 1 and "SIGKILL" in process["last_end"]
        for process in json.loads(pages(serve, "status.json")[0])["processes"]
    )


@pytest.mark.skipif(INSTALLED is None, reason=MISSING)
@long
def test_several_adapters_share_a_port_and_a_queue_and_restart_when_killed(tmp_path: Path) -> None:
    async def talk_until_both_serve() -> None:
        """The kernel spreads connections: sooner or later each adapter has one."""
        url = serve.address("WebSocket")
        seen = set[int]()
        async with antiphon.connect(url) as client:
            while len(seen) < 2:
                async with client.duplex() as session:
                    await unit(session)
                    # The one before may not be over yet.
                    await asyncio.to_thread(wait_until, lambda: sum(held_by(serve)) == 1, "it is alone")
                    seen.add(held_by(serve).index(1))

    with serving(tmp_path, "talk", *ADAPTERS) as serve:
        assert len(serve.addresses("Status")) == 2
        asyncio.run(talk_until_both_serve())
        for pids in (serve.redis_pids(), serve.pids("adapter"), serve.pids("worker")):
            os.kill(min(pids), signal.SIGKILL)
        wait_until(lambda: serve.errors.count("is ready again.") == 3, "all are back")
        wait_until(lambda: restarted_count(serve) == 3, "the status page says so")
        asyncio.run(talk_until_both_serve())

        serve.stop()


def forwarded(serve: Serve) -> float:
    """How many connections the adapters have forwarded to each other."""
    scrapes = [Scrape(page) for page in pages(serve, "metrics")]
    return sum(it.value("antiphon_resumes_total", outcome="forwarded") or 0.0 for it in scrapes)


async def lose_and_resume(url: str, times: int) -> None:
    """One session over as many connections; the kernel chooses the adapter of each."""
    resume, seen = "", 0
    while times >= 0:
        async with asyncio.timeout(PATIENCE_S), connect(url + resume, close_timeout=1) as socket:
            event: dict[str, Any] = {}
            if not resume:
                while event.get("type") != "session.created":
                    event = json.loads(await socket.recv())
                    seen += 1
                    if event["type"] == "session.queue_done":
                        await socket.send(json.dumps(INIT))
            else:
                event = json.loads(await socket.recv())
                if event.get("error", {}).get("code") == "service_unavailable":
                    continue  # on a busy machine an adapter may be slow
                assert (event["type"], event["last_event"]) == ("session.resumed", seen)
            times -= 1
            await socket.send(json.dumps(append()))
            await socket.recv()
            seen += 1
            resume = f"&resume={event['resume']['token']}&last_event={seen}"
            socket.transport.abort()


@pytest.mark.skipif(INSTALLED is None, reason=MISSING)
@pytest.mark.long
def test_lost_connection_is_resumed_through_any_adapter(tmp_path: Path) -> None:
    async def lose_all(url: str) -> None:
        async with asyncio.timeout(3 * PATIENCE_S):
            await asyncio.gather(*(lose_and_resume(url, 8) for _ in range(4)))

    options = ("--resume-window-s", "60", "--drain-timeout-s", "1")
    with serving(tmp_path, "talk", *ADAPTERS, *options) as serve:
        # Of 32 connections some come to the adapter that does not have their session.
        asyncio.run(lose_all(serve.address("WebSocket")))
        assert forwarded(serve) > 0

        serve.stop()


@pytest.mark.skipif(INSTALLED is None, reason=MISSING)
@pytest.mark.long
def test_killed_serve_ends_its_redis(tmp_path: Path) -> None:
    with serving(tmp_path, "talk", "--adapters", "2") as serve:
        assert len(serve.redis_pids()) == 1
        serve.stop(signal.SIGKILL, -signal.SIGKILL)


def test_several_adapters_without_any_redis_are_refused_with_the_remedy(tmp_path: Path) -> None:
    done = run_cli("serve", "--adapters", "2", "--port", "0", env=os.environ | {"PATH": str(tmp_path)})

    assert done.code == 2
    assert "apt-get install redis-server" in done.err
    assert "--dispatcher redis://" in done.err
