"""Conversion of the videos in a chat to frames and clips, in the model's order."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from antiphon.contract import Reason
from inference_service.errors import UnitRefused
from inference_service.interface.setups import Clip, Video
from inference_service.media.image import MAX_RATIO
from inference_service.session.kinds.components import Measure, Senses, View
from inference_service.video.messages import Order
from inference_service.video.plan import SHORTEST_TAIL
from inference_service.video.process import VideoReader, Watch

MAX_SECONDS = 600.0
"""Limit of seconds of all videos of a turn."""


@dataclass(frozen=True)
class Frame:
    """A frame of a video, or several that are joined, cut up for the eye."""

    view: View
    measure: Measure


Seen = Frame | Clip

Tokens = Callable[[list[Measure], list[int]], int]
"""Return the number of tokens of pictures and clips, from their measures and samples."""


def unroll(
    videos: Sequence[tuple[str, Video]],
    senses: Senses,
    tokens: Tokens,
    check: Callable[[int], None],
    *,
    max_slices: int,
    hears: bool,
    interleaves: bool,
    watch: Watch,
) -> dict[Video, tuple[Seen, ...]]:
    """Return the frames of each video and, if the model `hears` them, its clips.

    `check` refuses a number of tokens that does not fit, before the frames of a video are decoded. Raises
    `UnitRefused`.
    """
    shown: dict[Video, tuple[Seen, ...]] = {}
    taken, left_s = 0, MAX_SECONDS
    for field, video in videos:
        order = Order(left_s, senses.frame_pixels(max_slices), video.stack_frames, hears)
        with VideoReader(video.data, order, field=field, watch=watch) as reader:
            measures = _measures(reader, senses, max_slices, field)
            clips = _clips(reader) if interleaves else [Clip(reader.sound)]
            taken += tokens(measures, [len(clip.pcm) for clip in clips if len(clip.pcm)])
            check(taken)
            shown[video] = tuple(_seen(reader, senses, max_slices, measures, clips, interleaves=interleaves))
            left_s -= reader.seconds
    return shown


def _measures(reader: VideoReader, senses: Senses, max_slices: int, field: str) -> list[Measure]:
    for width, height in reader.sizes:
        if max(width, height) > MAX_RATIO * min(width, height):
            problem = f"has pictures one side of which is more than {MAX_RATIO} times the other"
            raise UnitRefused(Reason.VIDEO_INVALID, f"{field} {problem}.", field)
    return [senses.measure_frame(size, max_slices) for size in reader.sizes]


def _clips(reader: VideoReader) -> list[Clip]:
    """Return the sound of each moment of the video; a clip has no samples where the video has no sound."""
    pieces = [reader.sound[begin:end] for begin, end in reader.cuts]
    if len(reader.sound) and len(pieces[-1]) < SHORTEST_TAIL:
        pieces[-1] = np.pad(pieces[-1], (0, SHORTEST_TAIL - len(pieces[-1])))
    return list(map(Clip, pieces))


def _seen(
    reader: VideoReader,
    senses: Senses,
    max_slices: int,
    measures: list[Measure],
    clips: list[Clip],
    *,
    interleaves: bool,
) -> Iterator[Seen]:
    """Yield a frame, the sound up to the next one, and the stack of that second; or all pictures, then the
    sound.
    """
    following, sounds = iter(measures), iter(clips)
    for _, pictures in reader.pictures():
        frame, *stack = (Frame(senses.look_at(it, max_slices), next(following)) for it in pictures)
        yield frame
        if interleaves:
            yield from _audible(next(sounds))
        yield from stack
    if not interleaves:
        yield from _audible(*sounds)


def _audible(*clips: Clip) -> Iterator[Clip]:
    return (clip for clip in clips if len(clip.pcm))
