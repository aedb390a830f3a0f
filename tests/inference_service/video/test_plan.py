"""Choose frames and cut sound as the reference package does it.

`reference.json` holds what `get_video_frame_audio_segments` of minicpmo 0.1.2 (with decord 0.6.0) gave for
videos whose frames show their index and whose sound counts its samples: index of each picture, first sample
(modulo 20,000) and length of each piece of sound, indices of the frames of each stack, sizes of two stacks.
"""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from inference_service.video.plan import SHORTEST_TAIL, Layout, cuts, fitted, grid, moments

REFERENCE: list[dict[str, Any]] = json.loads(Path(__file__).with_name("reference.json").read_text())
IDS = [f"{it['container']}-{it['rate']}x{it['frames']}-{it['stack_frames']}" for it in REFERENCE]


@pytest.mark.parametrize("case", REFERENCE, ids=IDS)
def test_frames_sound_and_stacks_are_those_of_the_reference(case: dict[str, Any]) -> None:
    rate = float(Fraction(case["rate"]))
    seen = moments(case["frames"], rate, case["stack_frames"])
    assert [moment.frame for moment in seen] == case["pictures"]
    *others, (begin, end) = cuts(seen, case["frames"] / rate, case["samples"])
    padded = [*others, (begin, max(end, begin + SHORTEST_TAIL))]
    assert [end - begin for begin, end in padded] == [length for _, length in case["sounds"]]
    assert [begin % 20_000 for begin, _ in others] == [begin for begin, _ in case["sounds"][:-1]]
    if case["stack_frames"] > 1 and case["frames"] / rate <= 64:
        assert [list(moment.stack) or None for moment in seen] == case["stacks"]
    if case["stack_sizes"]:
        layout = Layout((192, 64), 10_000_000)
        sizes = [layout.stack(len(stack)) for stack in case["stacks"][:2] if stack]
        assert [list(size) for size in sizes] == [size for size in case["stack_sizes"] if size]


@pytest.mark.parametrize("rate", [0.5, 5.0, 10.0, 29.97, 60.0])
@pytest.mark.parametrize("seconds", [64.1, 100, 599])
def test_long_video_has_64_frames_each_with_the_stack_of_its_own_second(seconds: float, rate: float) -> None:
    frames = int(seconds * rate) + 1
    seen = moments(frames, rate, 8)
    assert len(seen) == 64
    assert [moment.frame for moment in seen] == sorted(moment.frame for moment in seen)
    for moment in seen:
        assert all(int(int(moment.time) * rate) <= index < frames for index in moment.stack)
        assert all(index <= int((int(moment.time) + 1) * rate) for index in moment.stack)


def test_shortest_video_has_one_frame() -> None:
    assert [moment.frame for moment in moments(1, 240.0, 8)] == [0]


@pytest.mark.parametrize(
    ("count", "size", "layout"),
    [
        (1, (640, 480), (1, 1)),
        (2, (640, 480), (1, 2)),
        (2, (480, 640), (2, 1)),
        (3, (1280, 480), (1, 3)),
        (3, (480, 1280), (3, 1)),
        (4, (640, 480), (2, 2)),
        (5, (640, 480), (5, 1)),
    ],
)
def test_stack_is_as_square_as_reference(count: int, size: tuple[int, int], layout: tuple[int, int]) -> None:
    assert grid(count, size) == layout


def test_frame_is_scaled_only_where_it_has_too_many_pixels() -> None:
    assert fitted((640, 480), 640 * 480) == (640, 480)
    width, height = fitted((4096, 2304), 200_000)
    assert width * height <= 200_000
    assert width / height == pytest.approx(4096 / 2304, rel=0.01)
