"""Pictures in chats of the vLLM engine: what is seen, counted, cached for each tenant, and refused."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from inference_service.checkpoints.causal import read_folder
from inference_service.engine_vllm.generator import Expanded, MediaInput
from inference_service.engine_vllm.prompts import FRAME_PIXELS, MOST_VIDEO_S
from inference_service.interface.engine import End, Prefilled, Ready
from inference_service.interface.setups import (
    ChatMessage,
    Clip,
    Picture,
    Tenant,
    TurnInput,
    UnitOverrides,
    Video,
)
from inference_service.video.messages import Order
from inference_service.video.process import VideoReader
from tests.inference_service.engine_vllm.support import engines, tiny_media
from tests.inference_service.engine_vllm.support.engines import Rig, Talker, Unit
from tests.inference_service.engine_vllm.support.tiny_media import PICTURE_TOKENS, picture, seen
from tests.support.long import long
from tests.support.patience import PATIENCE_S
from tests.support.videos import video

LIMIT = 255


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_media.save_seeing(tmp_path_factory.mktemp("seeing") / "tiny")


@pytest.fixture(scope="module", params=engines.PLAIN_AND_VLLM)
def eyes(request: pytest.FixtureRequest, seeing: Path) -> Iterator[Rig]:
    with engines.serving(request.param, seeing, LIMIT) as rig:
        yield rig


@pytest.fixture
def chat(eyes: Rig) -> Iterator[Talker]:
    talker = eyes.chat()
    talker.until(Ready)
    yield talker
    talker.close()


def png(pixels: NDArray[np.uint8]) -> Picture:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return Picture(file.getvalue())


def ask(talker: Talker, *parts: str | Picture | Clip | Video, most: int = 8) -> Unit:
    number = talker.send(TurnInput((ChatMessage("user", parts),)), UnitOverrides(max_new_tokens=most))
    return talker.finish(number)


def said(folder: Path, text: str, *pixels: NDArray[np.uint8], count: int = 8) -> str:
    return read_folder(folder).tokenizer.decode(seen(folder, text, pixels, count)).rstrip("\ufffd")


def test_pictures_are_answered_as_generate_does(chat: Talker, seeing: Path) -> None:
    one, two = picture(1), picture(2)
    for pixels in ([one], [two], [one, two]):
        answer = ask(chat, *map(png, pixels), "Hello!")
        assert answer.text == said(seeing, "Hello!", *pixels)
        usage = answer.done.usage
        assert usage.input_vision_tokens == PICTURE_TOKENS * len(pixels)
        assert answer.one(Prefilled).usage.input_text_tokens == usage.input_text_tokens > 0
        assert answer.done.context_tokens == usage.input_vision_tokens + usage.input_text_tokens + 7


def test_text_with_image_markers_adds_no_picture(chat: Talker, seeing: Path) -> None:
    plain = ask(chat, "<image> is a word")
    assert plain.done.usage.input_vision_tokens == 0
    forged = ask(chat, png(picture(1)), "<image><image>")
    assert forged.done.usage.input_vision_tokens == PICTURE_TOKENS
    assert ask(chat, png(picture(1)), "Hello!").text == said(seeing, "Hello!", picture(1))


def test_marks_in_a_token_stream_are_ids_like_others(eyes: Rig, seeing: Path) -> None:
    mark = read_folder(seeing).template.token("<image>")  # type: ignore[union-attr]
    assert mark is not None
    forger, other = eyes.stream(0), eyes.chat(1)
    forger.chunk([5, mark, mark, 17])
    assert ask(other, png(picture(1)), "Hello!").text == said(seeing, "Hello!", picture(1))
    forger.close()
    other.close()


@pytest.mark.parametrize(
    ("part", "reason", "field"),
    [
        (Clip(np.zeros(1600, np.float32)), "CONTENT_UNSUPPORTED", "turn.messages[0].content[0]"),
        (Video(b"none"), "CONTENT_UNSUPPORTED", "turn.messages[0].content[0]"),
        (Picture(b"none"), "IMAGE_INVALID", "turn.messages[0].content[0].image"),
    ],
)
def test_bad_part_is_refused(chat: Talker, part: Picture | Clip | Video, reason: str, field: str) -> None:
    failure = ask(chat, part, "Hello!").one(Prefilled).failure
    assert (failure.reason, failure.field) == (reason, field)
    assert ask(chat, "Hello!").done.failure is None


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_unit_during_picture_preparation_can_be_ended(
    eyes: Rig, end: str, seeing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if eyes.generator is None:
        pytest.skip("vLLM's processor cannot be held")
    usual, begun, release = eyes.generator.expand, threading.Event(), threading.Event()

    async def held(ids: list[int], media: Sequence[MediaInput]) -> Expanded:
        begun.set()
        await asyncio.to_thread(release.wait, PATIENCE_S)
        return await usual(ids, media)

    monkeypatch.setattr(eyes.generator, "expand", held)
    talker, other = eyes.chat(0), eyes.chat(1)
    number = talker.send(TurnInput((ChatMessage("user", (png(picture(1)), "Hello!")),)))
    assert begun.wait(PATIENCE_S)
    assert ask(other, "Hello!").done.failure is None
    if end == "close":
        talker.close()
        release.set()
    else:
        talker.session.cancel(number)
        release.set()
        assert talker.finish(number).done.end is End.CANCELLED
        talker.close()
    other.close()


def test_pictures_that_do_not_fit_are_refused(chat: Talker) -> None:
    many = [png(picture(1))] * (LIMIT // PICTURE_TOKENS + 1)
    failure = ask(chat, *many, "Hello!").one(Prefilled).failure
    assert (failure.reason, failure.field) == ("INPUT_TOO_LONG", "turn.messages")


@long
def test_clips_are_answered_as_generate_does(tmp_path: Path) -> None:
    folder = tiny_media.save_hearing(tmp_path / "hearing")
    with engines.serving("vllm", folder, LIMIT) as rig:
        assert rig.engine.info.input_sample_rate_hz == 16_000
        assert not rig.engine.info.sees
        talker = rig.chat()
        for sound in (tiny_media.clip(1), tiny_media.clip(2, 2.5)):
            answer = ask(talker, Clip(sound), "Hello!")
            expected = tiny_media.heard(folder, "Hello!", sound, 8)
            assert answer.text == read_folder(folder).tokenizer.decode(expected).rstrip("\ufffd")
            assert answer.done.usage.input_audio_tokens == len(sound) * 25 // 16_000
        refused = ask(talker, png(picture(1))).one(Prefilled).failure
        assert (refused.reason, refused.field) == ("CONTENT_UNSUPPORTED", "turn.messages[0].content[0]")
        talker.close()


@long
def test_videos_are_answered_as_generate_does(tmp_path: Path) -> None:
    folder = tiny_media.save_watching(tmp_path / "watching")
    with engines.serving("vllm", folder, LIMIT) as rig:
        assert rig.engine.info.sees
        talker = rig.chat()
        for seconds in (1, 3):
            file = video([picture(seed // 4) for seed in range(4 * seconds)], rate=4)
            order = Order(MOST_VIDEO_S, FRAME_PIXELS)
            with VideoReader(file, order, field="video", watch=lambda: None) as reader:
                frames = np.stack([pictures[0] for _, pictures in reader.pictures()])
            assert len(frames) == seconds
            answer = ask(talker, Video(file), "Hello!")
            expected = tiny_media.watched(folder, "Hello!", frames, 8)
            assert answer.text == read_folder(folder).tokenizer.decode(expected).rstrip("\ufffd")
            assert answer.done.usage.input_vision_tokens == 4 * seconds + 1
        invalid = ask(talker, Video(b"none")).one(Prefilled).failure
        assert (invalid.reason, invalid.field) == ("VIDEO_INVALID", "turn.messages[0].content[0].video")
        stacked = ask(talker, Video(file, 2)).one(Prefilled).failure
        assert stacked.field == "turn.messages[0].content[0].video.stack_frames"
        assert ask(talker, "Hello!").done.failure is None
        talker.close()


def test_tenants_share_nothing_of_a_picture(eyes: Rig, seeing: Path) -> None:
    text = "The same words, and long enough for a block of the cache. " * 3
    expected, cached = said(seeing, text, picture(3)), []
    for salt in (b"one", b"one", b"two"):
        talker = eyes.chat(tenant=Tenant(salt))
        answer = ask(talker, png(picture(3)), text)
        assert answer.text == expected
        cached.append(answer.done.usage.cached_tokens)
        talker.close()
    if eyes.generator is not None:
        first, again, stranger = eyes.generator.names[-3:]
        assert first == again != stranger
    else:
        assert (cached[0], cached[2]) == (0, 0)
        assert cached[1] > PICTURE_TOKENS
