"""Workers that are lost in the middle of a conversation with the shipped model: another one goes on."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

import antiphon
from tests.e2e.conftest import Recording, Server, running_adapter, running_worker, until_free
from tests.support.long import long
from tests.support.patience import PATIENCE_S

SILENCE_S = 5
OPTIONS = ("--silence-tail-units", "0", "--max-lag-s", "600")


@asynccontextmanager
async def two_workers() -> AsyncIterator[tuple[Server, str]]:
    """The worker that gets the first session, beside another one, and the URL of their adapter."""
    with running_worker(slots=1) as second, running_worker(slots=3) as first:
        with running_adapter(f"{first.address},{second.address}", *OPTIONS) as adapter:
            await until_free(adapter.address, 4, within_s=PATIENCE_S)
            yield first, adapter.address.replace("http", "ws")


async def answer(
    url: str, recording: Recording, strike: Callable[[], None] | None = None
) -> tuple[str, NDArray[np.float32]]:
    """All that the model says, as text and as samples; `strike` is called once, while it speaks."""
    text, pieces = "", [np.zeros(0, np.float32)]
    units = recording.units(SILENCE_S)
    async with asyncio.timeout(3 * PATIENCE_S), antiphon.connect(url) as client:
        async with client.duplex(seed=7) as session:
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
                if len(told) == len(units):
                    break
                if sent == len(told) and sent < len(units):
                    await session.send_audio(units[sent])
                    sent += 1
                    if strike is not None and text:
                        strike()
                        strike = None
    return text, np.concatenate(pieces)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=long), signal.SIGTERM])
@pytest.mark.sample("9")
async def test_conversation_whose_worker_is_lost_equals_an_undisturbed_one(
    number: signal.Signals, recordings: list[Recording]
) -> None:
    recording = max(recordings[:10], key=lambda each: len(each.reply))
    async with two_workers() as (first, url):
        text, samples = await answer(url, recording)
        assert text
        assert samples.any()

        try:
            disturbed = await answer(url, recording, lambda: os.kill(first.process.pid, number))
        finally:
            if number is signal.SIGSTOP:
                os.kill(first.process.pid, signal.SIGCONT)

    assert disturbed[0] == text
    assert disturbed[1].shape == samples.shape
    assert np.allclose(disturbed[1], samples, rtol=0, atol=1e-4)
