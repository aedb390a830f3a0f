"""The plan of a video: the frames that a model sees, and the cuts of its sound.

The rules are those of `get_video_frame_audio_segments` in minicpmo 0.1.2 (Apache-2.0), the reference of
MiniCPM-o: one frame a second. In a video of more than 64 s, 64 of the frames that lie 0.1 s apart are seen.
The sound is cut at the times of the frames.
"""

import math
from dataclasses import dataclass

import numpy as np

MAX_MOMENTS = 64
"""Limit of moments of one video, each with a frame and perhaps a stack."""
MAX_STACK_FRAMES = 8
SAMPLE_RATE = 16_000
SHORTEST_TAIL = 1_600
"""Least samples of the last piece of sound."""
LINE = 6
"""Pixels between the frames of a stack."""
_STEP_S = 0.1

Size = tuple[int, int]
"""Width and height."""


@dataclass(frozen=True)
class PlannedFrame:
    """A moment of a video: its time in seconds, and the index of the frame that a model sees then."""

    time: float
    frame: int
    stack: tuple[int, ...] = ()
    """Indices of further frames of the same second, which are joined to one picture."""


def moments(frames: int, rate: float, stack_frames: int) -> tuple[PlannedFrame, ...]:
    """Return the moments that a model sees, out of `frames` at `rate` a second; at most `MAX_MOMENTS`.

    For a video of more than 64 s the reference makes a stack for each second, so it has more stacks than
    frames. Here each frame has the stack of its own second.
    """
    duration = frames / rate
    times: list[float] = [float(second) for second in range(math.ceil(duration))]
    if duration > MAX_MOMENTS:
        times = [round(i * _STEP_S, 1) for i in range(int(duration / _STEP_S))]
        times = [times[i] for i in np.linspace(0, len(times) - 1, MAX_MOMENTS, dtype=int)]

    def at(time: float) -> int:
        return min(int(time * rate), frames - 1)

    def stack(second: int) -> tuple[int, ...]:
        within = (second + i / stack_frames for i in range(1, stack_frames))
        return tuple(at(time) for time in within if time < duration)

    return tuple(PlannedFrame(time, at(time), stack(int(time))) for time in times)


def cuts(seen: tuple[PlannedFrame, ...], duration: float, samples: int) -> list[tuple[int, int]]:
    """Return first and last sample (exclusive) of the sound of each moment; some may be empty."""
    ends = [*(moment.time for moment in seen[1:]), duration]
    return [
        (min(samples, int(moment.time * SAMPLE_RATE)), min(samples, int(end * SAMPLE_RATE)))
        for moment, end in zip(seen, ends, strict=True)
    ]


def fitted(size: Size, most_pixels: int) -> Size:
    """Return `size`, or a size of the same shape with at most `most_pixels`."""
    width, height = size
    if width * height <= most_pixels:
        return size
    scale = math.sqrt(most_pixels / (width * height))
    return max(1, int(width * scale)), max(1, int(height * scale))


def grid(count: int, size: Size) -> tuple[int, int]:
    """Return columns and rows in which `count` frames of `size` are joined.

    Four make a square; two and three stand side by side or one above the other, whichever is closer to a
    square; more stand side by side.
    """
    if count == 4:
        return 2, 2
    if count not in (2, 3):
        return count, 1
    beside, above = (count, 1), (1, count)
    far = [abs(_ratio(canvas(layout, size)) - 1) for layout in (beside, above)]
    if count == 2 and far[0] == far[1]:
        return beside if size[0] >= size[1] else above
    return beside if far[0] <= far[1] else above


def canvas(layout: tuple[int, int], size: Size) -> Size:
    """Return the size of a grid of frames with a line between any two."""
    (columns, rows), (width, height) = layout, size
    return columns * width + (columns - 1) * LINE, rows * height + (rows - 1) * LINE


def _ratio(size: Size) -> float:
    return size[0] / size[1]


@dataclass(frozen=True)
class Layout:
    """The layout of a video's pictures: at most `most_pixels` each."""

    size: Size
    """The size of a frame."""
    most_pixels: int

    @property
    def frame(self) -> Size:
        """The size of a single frame."""
        return fitted(self.size, self.most_pixels)

    def cell(self, count: int) -> Size:
        """Return the size of a frame in a stack of `count`."""
        return fitted(self.size, self.most_pixels // count)

    def stack(self, count: int) -> Size:
        """Return the size of a stack of `count` frames."""
        return canvas(grid(count, self.cell(count)), self.cell(count))

    def pictures(self, seen: tuple[PlannedFrame, ...]) -> list[Size]:
        """Return the sizes of all pictures in order: each frame, and then its stack."""
        return [size for moment in seen for size in self.of(moment)]

    def of(self, moment: PlannedFrame) -> list[Size]:
        """Return the sizes of the pictures of one moment."""
        return [self.frame, self.stack(len(moment.stack))] if moment.stack else [self.frame]
