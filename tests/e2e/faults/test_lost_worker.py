"""Workers that are lost in the middle of a conversation with the shipped model: another one goes on."""

import asyncio
import base64
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import numpy as np
import pytest
from numpy.typing import NDArray
from websockets.asyncio.client import connect

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
async def test_conversation_after_worker_loss_equals_undisturbed_one(
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


async def said(url: str, lose: Callable[[], None] = lambda: None) -> tuple[str, NDArray[np.float32]]:
    """A spoken answer of a chat with a seed; `lose` is called behind its first sound."""
    text, sound = "", b""
    async with connect(f"{url}/v1/realtime?mode=chat", max_size=None) as client, asyncio.timeout(PATIENCE_S):
        await client.send(json.dumps({"type": "session.init", "payload": {"seed": 7}}))
        messages = [{"role": "user", "content": "What can you do?"}]
        given = {"messages": messages, "streaming": True, "tts": {"enabled": True}}
        await client.send(json.dumps({"type": "input.append", "input": given}))
        async for frame in client:
            event = json.loads(frame)
            assert event["type"] != "error", event
            if event["type"] == "response.done":
                return text, np.frombuffer(sound, "<f4")
            text += event["text"] if event.get("kind") == "text" else ""
            had_sound = bool(sound)
            sound += base64.b64decode(event["audio"]) if event.get("kind") == "audio" else b""
            if sound and not had_sound:
                lose()
    raise AssertionError("the connection ended before the answer")


async def test_spoken_answer_after_worker_loss_equals_undisturbed_one() -> None:
    async with two_workers() as (first, url):
        text, sound = await said(url)
        again, heard = await said(url, lambda: os.kill(first.process.pid, signal.SIGKILL))
    assert text
    assert again == text
    assert heard.size == sound.size
    assert np.abs(heard - sound).max() < 1e-3
