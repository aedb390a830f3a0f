"""kill -9 of either side, in the middle of a turn."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest
from websockets.asyncio.client import connect

from tests.conformance.support.client import Client
from tests.e2e.conftest import (
    FOLDER,
    SLOTS,
    Recording,
    readiness,
    running_adapter,
    running_worker,
    until_all_free,
    until_free,
)
from tests.support.patience import PATIENCE_S

CLIENTS = 4


async def speaking_client(adapter: str, recordings: list[Recording], out: Path) -> asyncio.subprocess.Process:
    """A client process to which the model is speaking: the first of several questions that it answers."""
    for recording in recordings:
        command = [sys.executable, "-m", "antiphon_command", "talk", str(FOLDER / f"{recording.name}.wav")]
        command += ["--url", adapter.replace("http", "ws"), "--out", str(out)]
        client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert client.stdout is not None
        async for line in client.stdout:
            if b"speaks" in line:
                return client
        await client.wait()
    pytest.fail("the model answered no question at all")


async def test_killing_a_client_in_mid_turn_frees_its_slot(
    adapter: str, recordings: list[Recording], tmp_path: Path
) -> None:
    await until_all_free(adapter)
    long_replies = sorted(recordings, key=lambda r: -len(r.reply))
    client = await speaking_client(adapter, long_replies, tmp_path / "answer.wav")
    assert (await asyncio.to_thread(readiness, adapter))["free_slots"] == SLOTS - 1
    os.kill(client.pid, signal.SIGKILL)
    await until_free(adapter, SLOTS, within_s=PATIENCE_S)
    await client.wait()


async def terminal_events(url: str, opened: asyncio.Queue[None]) -> tuple[list[str], int | None]:
    """Return the types of the events after `session.created`, and the close code."""
    async with connect(f"{url}/v1/realtime?mode=audio") as socket:
        client = Client(socket)
        await client.send({"type": "session.init", "payload": {}})
        await client.until("session.created")
        opened.put_nowait(None)
        events, code = await client.end()
    return [event["type"] for event in events], code


async def test_killing_the_worker_gives_every_client_one_terminal_event() -> None:
    with running_worker(slots=CLIENTS) as worker, running_adapter(worker.address) as server:
        opened: asyncio.Queue[None] = asyncio.Queue()
        url = server.address.replace("http", "ws")
        clients = [asyncio.create_task(terminal_events(url, opened)) for _ in range(CLIENTS)]
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(CLIENTS):
                await opened.get()
            os.kill(worker.process.pid, signal.SIGKILL)
            told = await asyncio.gather(*clients)
    assert told == [(["error", "session.closed"], 1011)] * CLIENTS
