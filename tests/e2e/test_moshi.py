"""PersonaPlex through a real worker and a real adapter: every public dialect of conversations, random weights."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from websockets.asyncio.client import ClientConnection, connect

import antiphon
from antiphon.protocol.events import AudioDelta, Listening, TextDelta
from tests.cli.support.process import run_cli
from tests.e2e.conftest import running_adapter, running_worker
from tests.inference_service.engine.support import tiny_moshi
from tests.inference_service.engine.support.tiny_moshi import CODEC_FILE
from tests.support.patience import PATIENCE_S

SECONDS = 3
FRAME = 1920
SETTINGS = {"decode_mode": "greedy", "listen_prob_scale": 0.0}
STEADY = ("--silence-tail-units", "0")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tiny_moshi.publish(tmp_path_factory.mktemp("models") / "personaplex-tiny", personaplex=True)
    with running_worker("--model", str(folder), slots=2) as worker:
        with running_adapter(worker.address, *STEADY) as server:
            yield server.address.replace("http", "ws")


def second(seed: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return (0.2 * np.random.default_rng(seed).standard_normal(16_000)).astype(np.float32).clip(-1, 1)


async def converse(url: str, **how: object) -> tuple[str, list[int]]:
    """Text, and samples of each answer to a second."""
    text, samples = "", list[int]()
    async with (
        asyncio.timeout(PATIENCE_S),
        antiphon.connect(url) as client,
        client.duplex(settings=SETTINGS, seed=1, **how) as session,  # type: ignore[arg-type]
    ):
        await session.send_audio(second(0))
        async for event in session:
            match event:
                case TextDelta(text=said):
                    text += said
                    continue
                case AudioDelta(samples=pcm):
                    samples.append(len(pcm))
                case Listening():
                    samples.append(0)
                case _:
                    continue
            if len(samples) == SECONDS:
                break
            await session.send_audio(second(len(samples)))
    return text, samples


async def test_second_is_answered_by_the_frames_that_it_completes(adapter: str) -> None:
    text, samples = await converse(adapter, instructions="you are no tree")

    assert samples == [12 * FRAME, 13 * FRAME, 12 * FRAME]
    assert text


async def test_role_and_voice_are_settings(adapter: str) -> None:
    one, _ = await converse(adapter, instructions="you are no tree")
    again, _ = await converse(adapter, instructions="you are no tree")
    other, _ = await converse(adapter, instructions="be a tree")
    voiced, _ = await converse(adapter, instructions="you are no tree", voice="natm1")

    assert one == again
    assert len({one, other, voiced}) == 3
