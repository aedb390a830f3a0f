"""Videos in prompts: what a model is given is what it would be given as pictures and clips, in that order."""

from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from PIL import Image

from inference_service.errors import UnitRefused
from inference_service.families import table
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.setups import (
    ChatMessage,
    ChatSetup,
    Clip,
    Picture,
    Sampling,
    TurnInput,
    Video,
)
from inference_service.media.pool import Priority
from inference_service.session.kinds.components import View
from inference_service.session.kinds.prompt import (
    ChatPreprocessor,
    Dialogue,
    Passage,
    PromptPicture,
    Sound,
    Words,
)
from inference_service.video.messages import Order
from inference_service.video.process import VideoReader
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.support.exchange import DIALOGUE
from tests.inference_service.models.minicpmo import whole
from tests.support.videos import numbered, short, tone, video

SPOKEN = replace(DIALOGUE, interleaves_videos=True)
"""Of a model that hears a video's sound between its frames."""
FIELD = "turn.messages[0].content[1].video"


@pytest.fixture(scope="module")
def minicpmo(tmp_path_factory: pytest.TempPathFactory) -> Dialogue:
    """Return the dialogue of a MiniCPM-o with tiny random weights."""
    folder: Path = whole.write(tmp_path_factory.mktemp("models") / "MiniCPM-o-tiny")
    runtime = cast(DuplexRuntime, table.load(folder, torch.device("cpu"), 4096)(1))
    session = runtime.open("a", 0, ChatSetup(Sampling(), seed=0), print)
    return cast(ChatPreprocessor, session.preprocessor)._dialogue


def passages(
    dialogue: Dialogue, *parts: str | Picture | Clip | Video, **content: bool | int
) -> list[Passage]:
    turn = TurnInput((ChatMessage("user", parts),), **content)  # type: ignore[arg-type]
    prompt = ChatPreprocessor(dialogue, "").prepare(turn)
    return [passage for portion in prompt.portions for passage in portion]


def taken_apart(
    data: bytes, dialogue: Dialogue, stack_frames: int, *, interleaves: bool
) -> Iterator[Picture | Clip]:
    """Pictures and clips of a video in the order of the reference: frame, sound up to the next, stack."""
    assert dialogue.senses is not None
    order = Order(600.0, dialogue.senses.frame_pixels(1), stack_frames, hears=True)
    with VideoReader(data, order, field="", watch=lambda: None) as reader:
        for (_, (frame, *stack)), (begin, end) in zip(reader.pictures(), reader.cuts, strict=True):
            yield png(frame)
            if interleaves:
                yield Clip(np.pad(reader.sound[begin:end], (0, max(0, 1600 - (end - begin)))))
            yield from map(png, stack)
        if not interleaves:
            yield Clip(reader.sound)


def png(pixels: np.ndarray) -> Picture:  # type: ignore[type-arg]
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return Picture(file.getvalue())


def same(one: Passage, other: Passage) -> bool:
    match one, other:
        case Words(), Words():
            return one.ids == other.ids
        case PromptPicture(), PromptPicture():
            return slices(one.view) == slices(other.view)
        case Sound(), Sound():
            return torch.equal(one.features, other.features)
    return False


def slices(view: View) -> list[bytes]:
    return [getattr(piece, "pixels", piece).numpy().tobytes() for piece in view.slices]


@pytest.mark.parametrize("stack_frames", [1, 3])
@pytest.mark.parametrize("omni_mode", [False, True])
@pytest.mark.sample("True-1", "True-3")
def test_minicpmo_gets_order_of_reference(minicpmo: Dialogue, stack_frames: int, omni_mode: bool) -> None:
    data = video(numbered(26), rate=10, sound=tone(2.6))
    told: dict[str, bool | int] = {"omni_mode": omni_mode, "max_slice_nums": 1}
    parts = list(taken_apart(data, minicpmo, stack_frames, interleaves=True))
    kept = [it for it in parts if omni_mode or isinstance(it, Picture)]
    expected = passages(minicpmo, "a", *kept, "b", **told)
    got = passages(minicpmo, "a", Video(data, stack_frames), "b", **told)
    assert len(got) == len(expected)
    assert all(map(same, got, expected))
    pictures = [it for it in got if isinstance(it, PromptPicture)]
    assert len(pictures) == 3 * (1 + (stack_frames > 1))
    assert len([it for it in got if isinstance(it, Sound)]) == 3 * omni_mode


@pytest.mark.parametrize("stack_frames", [1, 3])
def test_model_that_knows_whole_clips_gets_the_sound_behind_the_frames(stack_frames: int) -> None:
    data = video(numbered(26), rate=10, sound=tone(2.6))
    parts = taken_apart(data, DIALOGUE, stack_frames, interleaves=False)
    got = passages(DIALOGUE, "a", Video(data, stack_frames), "b", omni_mode=True)
    assert all(map(same, got, passages(DIALOGUE, "a", *parts, "b", omni_mode=True)))
    assert [type(it) for it in got if not isinstance(it, Words)][-2:] == [Sound, Sound]


@pytest.mark.parametrize("dialogue", [DIALOGUE, SPOKEN], ids=["whole", "pieces"])
def test_silent_video_is_its_frames_alone(dialogue: Dialogue) -> None:
    got = passages(dialogue, Video(video(numbered(20), rate=10)), omni_mode=True)
    assert [type(it) for it in got if not isinstance(it, Words)] == [PromptPicture, PromptPicture]


def test_video_with_short_audio_omits_missing_sound() -> None:
    got = passages(SPOKEN, Video(video(numbered(40), rate=10, sound=tone(0.9))), omni_mode=True)
    kinds = [type(it) for it in got if not isinstance(it, Words)]
    assert kinds == [PromptPicture, Sound, PromptPicture, PromptPicture, PromptPicture, Sound]


def test_frames_are_numbered_and_counted_like_pictures() -> None:
    prompt = ChatPreprocessor(DIALOGUE, "").prepare(TurnInput((ChatMessage("user", (Video(short()),)),)))
    assert (prompt.slices, prompt.vision_tokens) == (2, 2 * tiny.PICTURE_TOKENS)


def test_turn_with_a_video_waits_for_other_videos_alone() -> None:
    preprocessor = ChatPreprocessor(DIALOGUE, "")
    assert preprocessor.priority(TurnInput((ChatMessage("user", ("a",)),))) is Priority.REST
    assert preprocessor.priority(TurnInput((ChatMessage("user", (Video(b""),)),))) is Priority.VIDEOS


def test_video_that_does_not_fit_is_refused_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VideoReader, "pictures", None)
    small = replace(DIALOGUE, limit=64)
    with pytest.raises(UnitRefused) as refused:
        passages(small, Video(video(numbered(60), rate=1)))
    assert (refused.value.failure.reason, refused.value.failure.field) == ("INPUT_TOO_LONG", "turn.messages")


def test_refusal_names_the_part() -> None:
    with pytest.raises(UnitRefused, match=r"must be an MP4, MOV, WebM or Matroska file\.") as refused:
        passages(DIALOGUE, "a", Video(b"GIF89a"))
    assert (refused.value.failure.reason, refused.value.failure.field) == ("VIDEO_INVALID", FIELD)


def test_part_behind_a_video_keeps_its_path() -> None:
    with pytest.raises(UnitRefused) as refused:
        passages(DIALOGUE, Video(short()), Picture(b"GIF89a"))
    assert refused.value.failure.field == "turn.messages[0].content[1].image"


def test_videos_of_a_turn_share_ten_minutes() -> None:
    long = video(numbered(350), rate=1)
    with pytest.raises(UnitRefused, match=r"content\[1\]\.video must last at most 250 s, not 350\.0 s\."):
        passages(DIALOGUE, Video(long), Video(long))


def test_frames_that_are_far_longer_than_wide_are_refused() -> None:
    with pytest.raises(UnitRefused, match="one side of which is more than 20 times the other"):
        passages(DIALOGUE, Video(video(numbered(2, (2048, 64)), rate=10)))
