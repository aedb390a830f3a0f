"""Small video files for tests, made with the libraries of FFmpeg."""

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

CELLS = 12
"""Of a numbered frame: black or white, the lowest bit at the left."""
SIZE = (192, 64)
SAMPLE_RATE = 16_000

Pixels = NDArray[np.uint8]
Pcm = NDArray[np.float32]


def video(
    frames: Iterable[Pixels],
    *,
    rate: int | Fraction = 25,
    container: str = "mp4",
    codec: str = "libx264",
    sound: Pcm | None = None,
    sound_codec: str | None = None,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
) -> bytes:
    """A video file with these frames, RGB [height, width, 3], and perhaps sound, mono at 16 kHz."""
    file = io.BytesIO()
    with _same_priority(), av.open(file, "w", format=container, options=container_options or {}) as output:
        stream = output.add_stream(codec, rate=rate, options=options or {})
        stream.pix_fmt = "yuv420p"
        stream.codec_context.thread_count = 1
        spoken = None
        if sound is not None:
            name = sound_codec or {"webm": "libopus", "mp4": "aac"}.get(container, "aac")
            spoken = output.add_stream(name, rate=48_000 if name == "libopus" else SAMPLE_RATE, layout="mono")
        for pixels in frames:
            if not stream.codec_context.is_open:
                stream.height, stream.width = pixels.shape[:2]
            output.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        output.mux(stream.encode(None))
        if spoken is not None and sound is not None:
            clip = av.AudioFrame.from_ndarray(sound[None], "fltp", "mono")
            clip.sample_rate, clip.pts = SAMPLE_RATE, 0
            clip.time_base = Fraction(1, SAMPLE_RATE)
            resampler = av.AudioResampler(spoken.format, "mono", spoken.rate, spoken.frame_size or None)
            for piece in (*resampler.resample(clip), *resampler.resample(None)):
                output.mux(spoken.encode(piece))
            output.mux(spoken.encode(None))
    return file.getvalue()


@contextmanager
def _same_priority() -> Iterator[None]:
    """Restore the scheduling of this process afterwards.

    Run by root, SVT-AV1 gives its caller real-time priority. Processes that the caller starts inherit it: a
    browser then keeps everything else from running.
    """
    policy, priority = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, priority)


def numbered(count: int, size: tuple[int, int] = SIZE) -> Iterator[Pixels]:
    width, height = size
    cells = np.arange(width) * CELLS // width
    for index in range(count):
        row = (index >> cells & 1) * 255
        yield np.broadcast_to(row[None, :, None], (height, width, 3)).astype(np.uint8)


def number(pixels: Pixels) -> int:
    height, width = pixels.shape[:2]
    middle = pixels[height // 2].mean(axis=1)
    return sum(int(middle[int((bit + 0.5) * width / CELLS)] > 127) << bit for bit in range(CELLS))


def shown(picture: Image.Image, seconds: float, rate: int = 10) -> Iterator[Pixels]:
    pixels = np.array(picture.convert("RGB"))
    return (pixels for _ in range(round(seconds * rate)))


def tone(seconds: float, hertz: float = 440.0) -> Pcm:
    times = np.arange(round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    return (0.5 * np.sin(2 * np.pi * hertz * times)).astype(np.float32)


@cache
def short() -> bytes:
    return video(numbered(20), rate=10, sound=tone(2.0))


def upright(data: bytes) -> bytes:
    """An MP4 file as from a phone held upright: a player has to turn it clockwise by a quarter."""
    quarter = [0, 1 << 16, 0, -1 << 16, 0, 0, 0, 0, 1 << 30]
    matrix = b"".join(number.to_bytes(4, "big", signed=True) for number in quarter)
    at = data.index(b"tkhd") + 4 + 40
    return data[:at] + matrix + data[at + len(matrix) :]
