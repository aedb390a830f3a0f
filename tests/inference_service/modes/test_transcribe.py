"""TRANSCRIBE sessions over gRPC with real engines: the duplex model and Voxtral Realtime, tiny and random."""

import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from antiphon.grpc import get_info
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.app import EXIT_CONFIGURATION, load_engine, serve
from inference_service.families import table
from inference_service.interface.setups import Sampling
from inference_service.options import WorkerOptions
from tests.inference_service.engine.support import tiny, tiny_voxtral
from tests.inference_service.engine.support.dictation import Sound, Writer, cut, noise
from tests.inference_service.support.caller import Caller, UnitAnswers, channel_to
from tests.support.scripted_engine import running_worker

WINDOW = 8
"""Units in flight that a stream may have."""
FEW = Sampling(max_new_tokens=16, temperature=0.0)


@dataclass
class Scene:
    """A worker with a real engine, and the checkpoint that it serves."""

    address: str
    folder: Path

    def alone(self, sound: Sound) -> str:
        """What the model writes for an utterance without any worker."""
        with torch.inference_mode():
            runtime = table.load(self.folder, torch.device("cpu"), None)(1)
            return Writer(runtime, sampling=FEW).write(sound, longest=16_000).text


SAVE: dict[str, Callable[[Path], object]] = {"duplex": tiny.save, "voxtral": tiny_voxtral.save}


@pytest.fixture(params=SAVE)
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    SAVE[request.param](tmp_path / "model")
    async with running_worker(load_engine, model=str(tmp_path / "model"), slots=3) as worker:
        yield Scene(worker.address, tmp_path / "model")


def speech(sound: Sound | None = None, *, begins: bool = False, ends: bool = False) -> pb.StreamInput:
    audio = None
    if sound is not None:
        audio = common.AudioChunk(
            encoding=common.AUDIO_ENCODING_PCM_F32LE, sample_rate_hz=16_000, data=sound.clip(-1, 1).tobytes()
        )
    return pb.StreamInput(audio=audio, begin_utterance=begins, end_utterance=ends)


class Dictaphone(Caller):
    async def opened(self) -> pb.SessionReady:
        await self.open()
        sampling = common.SamplingParams(max_new_tokens=FEW.max_new_tokens)
        return await self.configure(mode=pb.SESSION_MODE_TRANSCRIBE, sampling=sampling)

    async def utterance(self, sound: Sound, seed: int) -> list[UnitAnswers]:
        """Chunks of random lengths, as many ahead as the window allows, and the end."""
        chunks = [speech(chunk) for chunk in cut(sound, seed, 16_000) if len(chunk)]
        chunks[0].begin_utterance = True
        chunks.append(speech(ends=True))
        answers: list[UnitAnswers] = []
        for unit, chunk in enumerate(chunks, 1):
            if unit > WINDOW:
                answers.append(await self.answers(unit - WINDOW))
            await self.send_unit(unit, chunk)
        return answers + [await self.answers(n) for n in range(len(answers) + 1, len(chunks) + 1)]


def text_of(answers: list[UnitAnswers]) -> str:
    return "".join(answer.text for answer in answers)


async def test_chunks_come_back_as_text_and_the_last_one_ends_the_turn(scene: Scene) -> None:
    sound = noise(1, 3.3).clip(-1, 1)
    async with channel_to(scene.address) as channel:
        caller = Dictaphone(channel)
        ready = await caller.opened()
        answers = await caller.utterance(sound, 1)
        await caller.leave()
    assert ready.prompt_tokens > 0
    assert ready.max_units_in_flight == WINDOW
    assert ready.effective.idle_timeout.seconds == 60 or not ready.effective.HasField("idle_timeout")
    ends = [answer.done.end for answer in answers]
    assert ends == [pb.UNIT_END_CHUNK] * (len(ends) - 1) + [pb.UNIT_END_TURN]
    assert text_of(answers) == scene.alone(sound)
    assert text_of(answers)


async def test_worker_says_that_it_transcribes(scene: Scene) -> None:
    info = await get_info(scene.address)
    assert pb.SESSION_MODE_TRANSCRIBE in info.modes
    assert info.input_sample_rate_hz == 16_000


async def test_model_that_looks_ahead_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "whisper", "is_encoder_decoder": True}))
    code = await serve(WorkerOptions(listen="127.0.0.1:0", model=str(tmp_path)))
    assert code == EXIT_CONFIGURATION
    assert "attention must be causal" in capsys.readouterr().err
