"""SIGHUP: keys and certificate are read again."""

import asyncio
import signal
from pathlib import Path

from websockets.asyncio.client import connect

from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.conversation import codes
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.process import adapter_process
from tests.ws_adapter.support.stage import PATIENCE_S, Client


async def test_sighup_ends_the_sessions_of_withdrawn_keys_and_nothing_else(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "bob")
    options = ("--auth", "keys", "--keys", str(keys.path))
    async with (
        running_worker(ScriptedEngine(listen())) as worker,
        adapter_process(worker.address, *options) as (process, address),
    ):
        url = address.replace("http", "ws") + "/v1/realtime?mode=audio"
        async with (
            connect(url, additional_headers=keys.bearer("alice")) as first,
            connect(url, additional_headers=keys.bearer("bob")) as second,
        ):
            alice, bob = Client(first), Client(second)
            for client in (alice, bob):
                await client.expect_until("session.queue_done")
            keys.remove("alice")

            process.send_signal(signal.SIGHUP)

            events, close = await alice.end()
            assert (codes(events), close) == (["unauthorized"], 3000)
            await bob.send({"type": "session.init", "payload": {}})
            await bob.expect("session.created")
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == 0


async def test_without_anything_to_read_again_sighup_ends_the_process() -> None:
    async with adapter_process("127.0.0.1:1") as (process, _):
        process.send_signal(signal.SIGHUP)

        async with asyncio.timeout(PATIENCE_S):
            assert await process.wait() == -signal.SIGHUP
