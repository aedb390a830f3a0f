"""PersonaPlex through a real worker and a real adapter, in the public dialects; its weights are random."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from openai import AsyncOpenAI
from openai.types.live import OutputAudioDeltaEvent, OutputTranscriptDeltaEvent

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
MODEL = "personaplex-tiny"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tiny_moshi.publish(tmp_path_factory.mktemp("models") / MODEL, personaplex=True)
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


def three_seconds() -> str:
    """16-bit sound in base64."""
    sound = np.concatenate([second(seed) for seed in range(SECONDS)])
    return base64.b64encode((sound * 32_767).astype("<i2").tobytes()).decode()


async def test_live_answers_with_sound_and_its_transcript(adapter: str) -> None:
    client = AsyncOpenAI(api_key="none", base_url=f"{adapter.replace('ws', 'http', 1)}/v1")
    audio = {"format": {"type": "audio/pcm", "rate": 16_000}}
    text, samples = "", 0
    async with asyncio.timeout(PATIENCE_S), client.live.connect() as live:
        await live.send({"type": "session.start", "session": {"model": MODEL, "audio": audio}})
        started = await live.recv()
        assert started.type == "session.started", started
        await live.send({"type": "session.input_audio.append", "audio": three_seconds()})
        while not text or not samples:
            match event := await live.recv():
                case OutputAudioDeltaEvent():
                    samples += len(base64.b64decode(event.delta)) // 2
                case OutputTranscriptDeltaEvent():
                    text += event.delta
                case _:
                    assert event.type != "error", event


def test_folder_of_another_codec_ends_the_worker_with_one_sentence(tmp_path: Path) -> None:
    folder = tiny_moshi.publish(tmp_path / "published")
    (folder / CODEC_FILE).write_bytes((folder / "model.safetensors").read_bytes())

    done = run_cli("worker", "--model", str(folder), "--listen", "127.0.0.1:0")

    assert done.code == 2
    (sentence,) = (line for line in done.err.splitlines() if not line.startswith("{"))
    assert CODEC_FILE in sentence
    assert "holds no codec of the kind Mimi" in sentence
