"""CHAT over the wire: what a turn may bring, what becomes of it, and which field is at fault."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.engine.engine import LiveEngine
from inference_service.errors import UnitRefused
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Deliver, ModelInfo, OnFatal
from inference_service.interface.setups import (
    ChatMessage,
    ChatSetup,
    Clip,
    Mode,
    Picture,
    Sampling,
    TurnInput,
)
from inference_service.options import WorkerOptions
from inference_service.rpc.messages.requests import turn_input
from tests.inference_service.engine.support import tiny
from tests.inference_service.support.caller import Caller, channel_to
from tests.support.drawing import jpeg
from tests.support.scripted_engine import INFO, running_worker

CHAT = pb.SESSION_MODE_CHAT
CHATS = ChatSetup(Sampling(), seed=0)
DEAF = {"input_sample_rate_hz": 0, "output_sample_rate_hz": 0, "speaks": False}
PLAIN = replace(INFO, context_limit=100, modes=frozenset({Mode.CHAT}), **DEAF)  # type: ignore[arg-type]
ABLE = replace(PLAIN, input_sample_rate_hz=16_000, output_sample_rate_hz=24_000, sees=True, speaks=True)
RED = jpeg("red", "circle", (64, 48))
TONE = common.AudioChunk(
    encoding=common.AUDIO_ENCODING_PCM_S16LE, sample_rate_hz=16_000, data=b"\x00\x40" * 16_000
)


def text(words: str) -> pb.Content:
    return pb.Content(text=words)


def film(data: bytes, stack_frames: int = 0) -> pb.Content:
    return pb.Content(video=common.Video(data=data, stack_frames=stack_frames))


IMAGE = pb.Content(image=common.Image(data=RED))
AUDIO = pb.Content(audio=TONE)


def message(*content: pb.Content, role: pb.Role = pb.ROLE_USER) -> pb.ChatMessage:
    return pb.ChatMessage(role=role, content=content)


def turn(*messages: pb.ChatMessage, **fields: Any) -> pb.TurnInput:
    return pb.TurnInput(messages=messages or [message(text("Hello"))], **fields)


def test_every_field_reaches_the_engine() -> None:
    given = turn(
        message(text("Be brief."), role=pb.ROLE_SYSTEM),
        message(text("What?"), IMAGE, AUDIO),
        message(text("Nothing."), role=pb.ROLE_ASSISTANT),
        tts=pb.TtsConfig(enabled=True),
        image=pb.ImageConfig(max_slice_nums=4, use_image_id=False),
        omni_mode=True,
        enable_thinking=True,
        use_tts_template=True,
    )

    read = turn_input(given, ABLE, CHATS)

    system, user, assistant = read.messages
    assert (system, assistant) == (
        ChatMessage("system", ("Be brief.",)),
        ChatMessage("assistant", ("Nothing.",)),
    )
    words, picture, clip = user.parts
    assert (words, picture) == ("What?", Picture(RED))
    assert isinstance(clip, Clip)
    np.testing.assert_array_equal(clip.pcm, np.full(16_000, 0.5, np.float32))
    assert replace(read, messages=()) == TurnInput(
        (),
        speaks=True,
        use_tts_template=True,
        enable_thinking=True,
        omni_mode=True,
        max_slice_nums=4,
        use_image_id=False,
    )


def test_unset_fields_have_the_defaults() -> None:
    assert turn_input(turn(), PLAIN, CHATS) == TurnInput((ChatMessage("user", ("Hello",)),))


def test_speech_asked_of_a_model_without_a_voice_is_no_error() -> None:
    assert turn_input(turn(tts=pb.TtsConfig(enabled=True)), PLAIN, CHATS).speaks


def third(content: pb.Content) -> pb.TurnInput:
    """A turn in which `content` stands at messages[2].content[1]."""
    return turn(
        message(text("Hi")), message(text("Yes?"), role=pb.ROLE_ASSISTANT), message(text("Look"), content)
    )


def silence(**fields: Any) -> pb.Content:
    chunk = {"encoding": common.AUDIO_ENCODING_PCM_F32LE, "sample_rate_hz": 16_000, "data": bytes(64)}
    return pb.Content(audio=common.AudioChunk(**{**chunk, **fields}))


AT = "turn.messages[2].content[1]"
REFUSED: dict[str, tuple[pb.TurnInput, ModelInfo, str, str]] = {
    "no message": (pb.TurnInput(), ABLE, "PARAMS_INVALID", "turn.messages"),
    "no role": (
        turn(message(text("Hi")), pb.ChatMessage(content=[text("Hi")])),
        ABLE,
        "PARAMS_INVALID",
        "turn.messages[1].role",
    ),
    "unknown role": (turn(message(text("Hi"), role=9)), ABLE, "PARAMS_INVALID", "turn.messages[0].role"),  # type: ignore[arg-type]
    "no content": (turn(message()), ABLE, "PARAMS_INVALID", "turn.messages[0].content"),
    "empty part": (third(pb.Content()), ABLE, "PARAMS_INVALID", AT),
    "picture to the blind": (third(IMAGE), replace(ABLE, sees=False), "CONTENT_UNSUPPORTED", AT),
    "clip to the deaf": (third(AUDIO), PLAIN, "CONTENT_UNSUPPORTED", AT),
    "no sample": (third(silence(data=b"")), ABLE, "AUDIO_INVALID", f"{AT}.audio.data"),
    "other rate": (third(silence(sample_rate_hz=8_000)), ABLE, "AUDIO_INVALID", f"{AT}.audio.sample_rate_hz"),
    "no number": (
        third(silence(data=np.full(9, np.nan, "<f4").tobytes())),
        ABLE,
        "AUDIO_INVALID",
        f"{AT}.audio.data",
    ),
    "too many slices": (
        turn(image=pb.ImageConfig(max_slice_nums=10)),
        ABLE,
        "PARAMS_INVALID",
        "turn.image.max_slice_nums",
    ),
    "video to the blind": (third(film(b"a")), replace(ABLE, sees=False), "CONTENT_UNSUPPORTED", AT),
    "stack of a video": (third(film(b"a", 9)), ABLE, "PARAMS_INVALID", f"{AT}.video.stack_frames"),
    "five videos": (turn(message(*[film(b"a")] * 5)), ABLE, "PARAMS_INVALID", "turn.messages"),
    "unknown voice": (
        turn(tts=pb.TtsConfig(enabled=True, voice=common.Voice(voice_id="alto"))),
        ABLE,
        "PARAMS_INVALID",
        "turn.tts.voice.voice_id",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_names_the_field(name: str) -> None:
    given, info, reason, field = REFUSED[name]
    with pytest.raises(UnitRefused) as refused:
        turn_input(given, info, CHATS)
    assert (refused.value.failure.reason, refused.value.failure.field) == (reason, field)
    assert field in refused.value.failure.message


def engine(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> LiveEngine:
    """A tiny model that sees."""
    runtime = DuplexRuntime(antiphon_mini.components(*tiny.model(sees=True)), 2)
    return LiveEngine(runtime, 2, deliver, on_fatal)


@asynccontextmanager
async def chat() -> AsyncIterator[Caller]:
    async with running_worker(engine) as worker, channel_to(worker.address) as channel:
        session = await Caller(channel).open()
        sampling = common.SamplingParams(max_new_tokens=24, temperature=1, top_p=1)
        await session.configure(mode=CHAT, seed=1, sampling=sampling)
        yield session


def sampling(**fields: Any) -> dict[str, Any]:
    return {"sampling": common.SamplingParams(**fields)}


async def test_turns_are_answered_in_text_and_in_speech_if_asked() -> None:
    async with chat() as session:
        first = await session.unit(1, turn())
        second = await session.unit(2, turn(), **sampling(max_new_tokens=3, ignore_eos=True))
        assert first.done.end == second.done.end == pb.UNIT_END_TURN
        assert second.done.finish_reason == pb.FINISH_REASON_LENGTH
        assert second.done.usage.output_text_tokens == 3
        assert second.prefill.prefilled.context_tokens == first.prefill.prefilled.context_tokens
        assert first.samples == 0
        asked = turn(tts=pb.TtsConfig(enabled=True))
        spoken = await session.unit(3, asked, **sampling(seed=2, max_new_tokens=6))
        assert spoken.text
        assert spoken.samples == 960 * spoken.done.usage.output_audio_tokens > 0
        assert spoken.done.timings.HasField("vocoder")
        await session.half_close(*session.calls)


async def test_turn_with_a_bad_picture_fails_alone() -> None:
    async with chat() as session:
        failed = await session.unit(1, third(pb.Content(image=common.Image(data=b"GIF89a"))))
        good = await session.unit(2, turn())
        assert (failed.prefill.error.reason, failed.prefill.error.field) == ("IMAGE_INVALID", f"{AT}.image")
        assert (failed.done.end, failed.done.error) == (pb.UNIT_END_FAILED, failed.prefill.error)
        assert good.done.end == pb.UNIT_END_TURN
        await session.half_close(*session.calls)
