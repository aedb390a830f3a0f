"""Workers that are lost in the middle of a conversation with the shipped model: another one goes on."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from numpy.typing import NDArray

import antiphon
from tests.e2e.conftest import Recording, Server, running_adapter, running_worker
from tests.support.long import long
from tests.support.patience import PATIENCE_S

SILENCE_S = 5
OPTIONS = ("--silence-tail-units", "0", "--max-lag-s", "600")


@contextmanager
def two_workers(*options: str) -> Iterator[tuple[Server, Server, str]]:
    """Two workers, of which the first one gets the first session, and the URL of their adapter."""
    with running_worker(slots=1) as second, running_worker(*options, slots=3) as first:
        with running_adapter(f"{first.address},{second.address}", *OPTIONS) as adapter:
            yield first, second, adapter.address.replace("http", "ws")


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
async def test_conversation_whose_worker_is_lost_equals_an_undisturbed_one(
    number: signal.Signals, recordings: list[Recording]
) -> None:
    recording = max(recordings[:10], key=lambda each: len(each.reply))
    with two_workers() as (first, _, url):
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
