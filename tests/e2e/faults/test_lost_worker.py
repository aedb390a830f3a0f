"""Workers that are lost in the middle of a conversation with the shipped model: another one goes on."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.e2e.conftest import Recording, Server, running_adapter, running_worker, until_free
from tests.e2e.support.conversation import answer
from tests.support.long import long
from tests.support.patience import PATIENCE_S

OPTIONS = ("--silence-tail-units", "0", "--max-lag-s", "600")


@asynccontextmanager
async def two_workers() -> AsyncIterator[tuple[Server, str]]:
    """The worker that gets the first session, beside another one, and the URL of their adapter."""
    with running_worker(slots=1) as second, running_worker(slots=3) as first:
        with running_adapter(f"{first.address},{second.address}", *OPTIONS) as adapter:
            await until_free(adapter.address, 4, within_s=PATIENCE_S)
            yield first, adapter.address.replace("http", "ws")


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=long), signal.SIGTERM])
@pytest.mark.sample("9")
async def test_conversation_whose_worker_is_lost_equals_an_undisturbed_one(
    number: signal.Signals, recordings: list[Recording]
) -> None:
    recording = max(recordings[:10], key=lambda each: len(each.reply))
    async with two_workers() as (first, url):
        undisturbed = await answer(url, recording)
        assert undisturbed.text
        assert undisturbed.samples.any()

        try:
            disturbed = await answer(url, recording, lambda: os.kill(first.process.pid, number))
        finally:
            if number is signal.SIGSTOP:
                os.kill(first.process.pid, signal.SIGCONT)

    disturbed.assert_equals(undisturbed)
