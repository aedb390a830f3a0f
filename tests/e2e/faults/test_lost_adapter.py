"""An adapter that dies in the middle of a conversation with the shipped model: another one goes on."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import antiphon
from tests.e2e.conftest import Recording, Server, until_free
from tests.e2e.conftest import antiphon as running
from tests.failures.link import Link, link_to
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import RedisServer
from tests.ws_adapter.server.test_several_adapters import age
from tests.ws_adapter.support.process import ADAPTER_OPTIONS

SILENCE_S = 5
OPTIONS = (
    "--resume-window-s",
    "60",
    "--silence-tail-units",
    "0",
    "--max-lag-s",
    "600",
    "--drain-timeout-s",
    "0",
)


class Adapters:
    """Two adapters of one Redis, and the balancer in front of them."""

    def __init__(self, link: Link, *servers: Server) -> None:
        self.link = link
        self.servers = servers
        self.use(0)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"ws://{self.link.address}"

    def use(self, index: int) -> None:
        """Send connections that come from now on to this one."""
        self.link.target = self.servers[index].address.removeprefix("http://")

    def end_first(self, number: signal.Signals) -> None:
        """End the first one, and use the second one."""
        self.use(1)
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


async def answer(
    url: str, recording: Recording, strike: Callable[[], None] | None = None
) -> tuple[str, NDArray[np.float32], int]:
    """All that the model says, as text and as samples, and how often the session was resumed; `strike` is
    called once, while it speaks and with a unit at the worker."""
    text, pieces, resumed = "", [np.zeros(0, np.float32)], 0
    units = recording.units(SILENCE_S)
    async with asyncio.timeout(3 * PATIENCE_S), antiphon.connect(url) as client:
        async with client.duplex(seed=7, reconnect=True) as session:
            sent, told = 0, set[str | None]()
            async for event in session:
                match event:
                    case antiphon.TextDelta():
                        text += event.text
                        told.add(event.input_id)
                    case antiphon.AudioDelta():
                        pieces.append(event.samples)
                        told.add(event.input_id)
                    case antiphon.Listening() | antiphon.Interrupted():
                        told.add(event.input_id)
                    case antiphon.Resumed():
                        resumed += 1
                if len(told) == len(units):
                    break
                if sent == len(told) and sent < len(units) and not isinstance(event, antiphon.ConnectionLost):
                    await session.send_audio(units[sent])
                    sent += 1
                    if strike is not None and text:
                        strike()
                        strike = None
    return text, np.concatenate(pieces), resumed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.sample("9")
async def test_conversation_whose_adapter_ends_equals_an_undisturbed_one(
    number: signal.Signals, redis_server: RedisServer, recordings: list[Recording], tmp_path: Path
) -> None:
    recording = max(recordings[:10], key=lambda each: len(each.reply))
    async with two_adapters(redis_server, tmp_path) as adapters:
        text, samples, _ = await answer(adapters.url, recording)
        assert text
        assert samples.any()

        disturbed = await answer(adapters.url, recording, lambda: adapters.end_first(number))

    assert disturbed[0] == text
    assert disturbed[2] == 1
    assert disturbed[1].shape == samples.shape
    assert np.allclose(disturbed[1], samples, rtol=0, atol=1e-4)
