"""Conversations with Moshi over gRPC and through the adapter: a real worker, random weights, real sound."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.app import load_engine
from tests.inference_service.engine.support import tiny_moshi
from tests.inference_service.engine.support.guests import Sound
from tests.inference_service.support.caller import Caller, UnitAnswers, channel_to, duplex
from tests.support.scripted_engine import running_worker

NATIVE = {"chunk_ms": 80, "sample_rate": 24_000}
FRAME, RATE = 1920, 24_000


@pytest.fixture
async def caller(tmp_path: Path) -> AsyncIterator[Caller]:
    folder = tiny_moshi.publish(tmp_path / "personaplex-tiny", personaplex=True)
    async with (
        running_worker(load_engine, model=str(folder), slots=3) as worker,
        channel_to(worker.address) as channel,
    ):
        yield await Caller(channel).open()


def noise(samples: int, seed: int = 1) -> Sound:
    return (0.2 * np.random.default_rng(seed).standard_normal(samples)).astype(np.float32).clip(-1, 1)


async def conversed(caller: Caller, sounds: list[Sound], rate: int) -> list[UnitAnswers]:
    return [await caller.unit(unit, duplex(sound, rate)) for unit, sound in enumerate(sounds, start=1)]


async def opened(caller: Caller, **settings: int | float) -> pb.SessionReady:
    config = common.DuplexConfig(decode_mode=common.DECODE_MODE_GREEDY, listen_prob_scale=0.0, **settings)
    return await caller.configure(
        mode=pb.SESSION_MODE_AUDIO,
        duplex=config,
        system_prompt="you are no tree",
        voice=common.Voice(voice_id="natm1"),
    )


async def test_frame_of_80_ms_is_answered_by_80_ms(caller: Caller) -> None:
    ready = await opened(caller, **NATIVE)
    answers = await conversed(caller, [noise(FRAME, seed) for seed in range(4)], RATE)
    await caller.leave()
    assert ready.unit_duration.ToMilliseconds() == 80
    assert (ready.input_sample_rate_hz, ready.output_sample_rate_hz) == (RATE, RATE)
    assert (ready.effective.duplex.chunk_ms, ready.effective.voice.voice_id) == (80, "natm1")
    assert ready.prompt_tokens > 12
    assert [answer.samples for answer in answers] == [FRAME] * 4
    assert "".join(answer.text for answer in answers)


async def test_second_is_answered_by_its_frames(caller: Caller) -> None:
    ready = await opened(caller)
    answers = await conversed(caller, [noise(16_000, seed) for seed in range(2)], 16_000)
    await caller.leave()
    assert ready.unit_duration.ToMilliseconds() == 1000
    assert (ready.input_sample_rate_hz, ready.output_sample_rate_hz) == (16_000, RATE)
    assert [answer.samples for answer in answers] == [12 * FRAME, 13 * FRAME]


async def test_settings_without_effect_are_listed_as_ignored_fields(caller: Caller) -> None:
    ready = await caller.configure(
        mode=pb.SESSION_MODE_AUDIO,
        duplex=common.DuplexConfig(length_penalty=1.2, listen_top_k=3, temperature=0.5),
        window=common.WindowConfig(mode=common.WINDOW_MODE_BASIC, high_tokens=90),
        sampling=common.SamplingParams(max_new_tokens=9, top_k=5),
    )
    await caller.leave()

    assert sorted(ready.ignored_fields) == [
        "duplex.length_penalty",
        "duplex.listen_top_k",
        "sampling.max_new_tokens",
        "window.high_tokens",
        "window.mode",
    ]
    assert ready.effective.window.mode == common.WINDOW_MODE_OFF


async def test_format_that_the_model_has_not_is_refused(caller: Caller) -> None:
    await caller.send_config(
        mode=pb.SESSION_MODE_AUDIO, duplex=common.DuplexConfig(chunk_ms=1000, sample_rate=24_000)
    )
    ended = await caller.end()
    assert ended.fields == ("duplex.sample_rate",)
    assert "must be 16000, not 24000" in ended.message
