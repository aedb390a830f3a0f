"""An adapter that dies in the middle of a conversation with the shipped model: another one goes on."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import Recording, Server, until_free
from tests.e2e.conftest import antiphon as running
from tests.e2e.support.conversation import answer
from tests.failures.link import Link, link_to
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.ws_adapter.support.backend import age
from tests.ws_adapter.support.process import ADAPTER_OPTIONS

OPTIONS = (
    *("--resume-window-s", "60", "--silence-tail-units", "0"),
    *("--max-lag-s", "600", "--drain-timeout-s", "0"),
)


class Adapters:
    """Two adapters of one Redis, and the balancer in front of them, which leads to the first one."""

    def __init__(self, link: Link, *servers: Server) -> None:
        self.servers = servers
        self.url = f"ws://{link.address}"
        self._targets = [server.address.removeprefix("http://") for server in servers]
        self._link = link
        link.target = self._targets[0]

    def end_first(self, number: signal.Signals) -> None:
        self._link.target = self._targets[1]
        os.kill(self.servers[0].process.pid, number)


@asynccontextmanager
async def two_adapters(redis: RedisServer, folder: Path) -> AsyncIterator[Adapters]:
    age(redis)
    (folder / "key").write_text("0123456789abcdef0123456789abcdef\n")
    shared = ("--dispatcher", redis.url)
    with ExitStack() as exits:
        exits.enter_context(running("worker", "--listen", "127.0.0.1:0", "--slots", "4", *shared))
        servers = [
            exits.enter_context(
                running(
                    *("adapter", "--port", "0", *shared, *ADAPTER_OPTIONS, *OPTIONS, "--journal", "redis"),
                    *("--client-secret-key-file", str(folder / "key")),
                    *("--peer-listen", "127.0.0.1:0"),
                )
            )
            for _ in range(2)
        ]
        for server in servers:
            await until_free(server.address, 4, within_s=PATIENCE_S)
        async with link_to(None) as link:
            yield Adapters(link, *servers)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.sample("9")
async def test_conversation_after_adapter_loss_equals_undisturbed_one(
    number: signal.Signals, redis_server: RedisServer, recordings: list[Recording], tmp_path: Path
) -> None:
    recording = max(recordings[:10], key=lambda each: len(each.reply))
    async with two_adapters(redis_server, tmp_path) as adapters:
        undisturbed = await answer(adapters.url, recording, reconnect=True)
        assert undisturbed.text
        assert undisturbed.samples.any()

        disturbed = await answer(adapters.url, recording, lambda: adapters.end_first(number), reconnect=True)

    assert disturbed.resumed == 1
    disturbed.assert_equals(undisturbed)
