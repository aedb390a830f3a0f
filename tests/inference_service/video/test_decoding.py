"""Real files through the real decoding process: every frame and every sample in its place."""

import json
import os
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from inference_service.video.messages import Order
from inference_service.video.process import VideoReader
from tests.support.videos import SAMPLE_RATE, SIZE, number, numbered, shown, tone, upright, video

FIELD = "turn.messages[0].content[0].video"
REFERENCE: list[dict[str, Any]] = json.loads(Path(__file__).with_name("reference.json").read_text())
ALL = Order(600.0, 4_000_000, hears=True)

Pixels = NDArray[np.uint8]


def read(data: bytes, order: Order = ALL) -> tuple[VideoReader, list[list[Pixels]]]:
    with VideoReader(data, order, field=FIELD, watch=lambda: None) as reader:
        return reader, [pictures for _, pictures in reader.pictures()]


def stacked(picture: Pixels, count: int) -> list[int]:
    width, height = SIZE
    columns, rows = (picture.shape[1] + 6) // (width + 6), (picture.shape[0] + 6) // (height + 6)
    cells = [(y * (height + 6), x * (width + 6)) for y in range(rows) for x in range(columns)]
    return [number(picture[y : y + height, x : x + width]) for y, x in cells[:count]]


@pytest.mark.parametrize("case", REFERENCE, ids=lambda it: f"{it['codec']}-{it['rate']}x{it['frames']}")
@pytest.mark.sample("libx264-30x2", "libx264-25x60*", "libvpx*", "libx264-10x640")
def test_decoded_frames_are_those_of_the_reference(case: dict[str, Any]) -> None:
    rate = Fraction(case["rate"])
    data = video(numbered(case["frames"]), rate=rate, container=case["container"], codec=case["codec"])
    _, pictures = read(data, Order(600.0, 4_000_000, case["stack_frames"]))
    assert [number(frame) for frame, *_ in pictures] == case["pictures"]
    if case["stacks"] and case["frames"] / rate <= 64:
        found = [
            stacked(stack[0], len(wanted)) if stack else None
            for (_, *stack), wanted in zip(pictures, case["stacks"], strict=True)
        ]
        assert found == case["stacks"]


@pytest.mark.parametrize(
    ("container", "codec"),
    [
        ("mp4", "libx264"),
        ("mov", "libx264"),
        ("mp4", "libx265"),
        ("mp4", "libsvtav1"),
        ("webm", "libvpx"),
        ("webm", "libvpx-vp9"),
        ("webm", "libsvtav1"),
        ("matroska", "libx264"),
    ],
)
def test_every_container_and_codec_is_decoded(container: str, codec: str) -> None:
    scheduling = os.sched_getscheduler(0)
    data = video(numbered(13), rate=5, container=container, codec=codec, sound=tone(2.6))
    reader, pictures = read(data)
    assert os.sched_getscheduler(0) == scheduling, "processes that tests start would inherit it"
    assert [number(frame) for (frame,) in pictures] == [0, 5, 10]
    assert reader.seconds == pytest.approx(2.6, abs=0.01)
    assert len(reader.sound) == pytest.approx(2.6 * SAMPLE_RATE, abs=0.05 * SAMPLE_RATE)


def test_sound_lies_where_it_was_recorded() -> None:
    silence = np.zeros(SAMPLE_RATE, np.float32)
    sound = np.concatenate([silence, tone(1.0), silence])
    reader, _ = read(video(numbered(30), rate=10, sound=sound))
    loud = [float(np.abs(reader.sound[begin:end]).mean()) for begin, end in reader.cuts]
    assert [level > 0.2 for level in loud] == [False, True, False]
    assert all(end == begin for (_, end), (begin, _) in pairwise(reader.cuts))
    assert reader.cuts[0][0] == 0


def test_sound_is_decoded_only_where_it_is_wanted_and_ends_with_the_pictures() -> None:
    data = video(numbered(10), rate=10, sound=tone(3.0))
    assert len(read(data)[0].sound) == SAMPLE_RATE
    assert len(read(data, Order(600.0, 4_000_000, hears=False))[0].sound) == 0


def test_large_frames_are_scaled_down_in_their_shape() -> None:
    data = video(shown(Image.new("RGB", (1280, 720), "red"), 0.2), rate=10)
    reader, [[frame]] = read(data, Order(600.0, 65_536))
    assert (frame.shape[1], frame.shape[0]) == reader.sizes[0]
    assert frame.shape[0] * frame.shape[1] <= 65_536
    assert frame.shape[1] / frame.shape[0] == pytest.approx(16 / 9, rel=0.01)
    assert np.abs(frame.reshape(-1, 3).mean(axis=0) - (254, 0, 0)).max() < 6


def test_video_of_a_phone_stands_upright() -> None:
    pixels = np.zeros((64, 128, 3), np.uint8)
    pixels[:, :64, 0], pixels[:, 64:, 2] = 255, 255
    data = upright(video([pixels], rate=10))
    reader, [[frame]] = read(data)
    assert reader.sizes == [(64, 128)]
    assert frame[:56].mean(axis=(0, 1)).argmax() == 0
    assert frame[72:].mean(axis=(0, 1)).argmax() == 2


@pytest.mark.parametrize("codec", ["libx264", pytest.param("libx265", marks=pytest.mark.long)])
@pytest.mark.long
def test_largest_frames_fit_into_the_memory_of_the_process(codec: str) -> None:
    data = video(numbered(5, (4096, 4096)), rate=4, codec=codec, options={"preset": "ultrafast"})
    _, pictures = read(data, Order(600.0, 65_536, 4))
    assert [number(frame) for frame, *_ in pictures] == [0, 4]
    assert [len(stack) for _, *stack in pictures] == [1, 0]
