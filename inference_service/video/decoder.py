"""The program of the decoding process: a video file on standard input, pictures and sound on standard output.

Its argument is the JSON of `Order`. Each message is a letter, the length of the body in four bytes (big
endian), and the body: `H` the JSON of `Header`, `S` the sound as float32 at 16 kHz, `P` one picture as RGB,
`R` the reason of a refusal.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from io import BytesIO

import av
import av.subtitles.stream  # otherwise imported when a file is opened, which the sandbox forbids
import numpy as np
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.codec.context import CodecContext
from av.container import InputContainer
from av.stream import Stream
from av.video.frame import VideoFrame
from av.video.reformatter import Interpolation
from av.video.stream import VideoStream
from numpy.typing import NDArray

from inference_service.video import sandbox
from inference_service.video.container import format_of, is_cut_short
from inference_service.video.messages import MAX_RATE, MAX_SIDE, Header, Order
from inference_service.video.plan import LINE, SAMPLE_RATE, Layout, PlannedFrame, Size, grid, moments

MAX_TRACKS = 32
CODECS = {"h264": "H.264", "hevc": "HEVC", "vp8": "VP8", "vp9": "VP9", "av1": "AV1"}
_UNKNOWN = "an unknown codec"
_ATTACHED_PICTURE = 1 << 10
"""The disposition flag of a cover picture."""

Pixels = NDArray[np.uint8]


class Refused(Exception):
    """Raised when the video cannot be used; the text continues a sentence about the video: "is cut short"."""


def main() -> None:
    """Decode the video on standard input, without privileges."""
    order = Order(**json.loads(sys.argv[1]))
    data = sys.stdin.buffer.read()
    sandbox.enter()
    try:
        _decode(data, order)
    except Refused as refused:
        _send(b"R", str(refused).encode())
    except MemoryError:
        _send(b"R", b"needs more than 1 GiB of memory")
    except av.error.PermissionError:
        raise  # the sandbox forbids a call that is needed: not a fault of the file
    except av.error.FFmpegError:
        _send(b"R", b"is damaged")
    sys.stdout.flush()
    os._exit(0)  # no cleanup is needed


def _send(letter: bytes, *parts: bytes | memoryview) -> None:
    out = sys.stdout.buffer
    out.write(letter + sum(map(len, parts)).to_bytes(4, "big"))
    for part in parts:
        out.write(part)
    out.flush()


def _decode(data: bytes, order: Order) -> None:
    name = format_of(data)
    if name is None:
        raise Refused("must be an MP4, MOV, WebM or Matroska file")
    if is_cut_short(data):
        raise Refused("is cut short")

    def opened() -> InputContainer:
        return av.open(BytesIO(data), "r", format=name)

    with opened() as container:
        frames, rate = _measured(container, order.most_s)
    sound = _sound(opened, int(frames / rate * SAMPLE_RATE)) if order.hears else np.zeros(0, np.float32)
    with opened() as container:
        _send_pictures(container, moments(frames, rate, order.stack_frames), frames, rate, sound, order)


def _pictures_of(container: InputContainer) -> VideoStream:
    """Return the track of moving pictures."""
    found = [it for it in container.streams.video if not int(it.disposition) & _ATTACHED_PICTURE]
    if not found:
        raise Refused("has no moving pictures")
    return found[0]


def _measured(container: InputContainer, most_s: float) -> tuple[int, float]:
    """Return the number of frames and the frame rate, without decoding."""
    if len(container.streams) > MAX_TRACKS:
        raise Refused(f"must have at most {MAX_TRACKS} tracks, not {len(container.streams)}")
    stream = _pictures_of(container)
    codec = _codec(stream)
    if codec not in CODECS:
        raise Refused(f"has pictures in {codec}; they must be in {', '.join(CODECS.values())}")
    _check_size((stream.codec_context.width, stream.codec_context.height))
    most = round(MAX_RATE * most_s)
    frames = 0
    for packet in container.demux(stream):
        frames += bool(packet.size) and not packet.is_discard
        if frames > most:
            raise Refused(f"has more than {most} frames, {MAX_RATE} for each of {most_s:g} s")
    if not frames:
        raise Refused("has no moving pictures")
    rate = float(stream.average_rate or stream.guessed_rate or 0)
    if rate <= 0:
        raise Refused("states no frame rate")
    if frames / rate > most_s:
        raise Refused(f"must last at most {most_s:g} s, not {frames / rate:.1f} s")
    if rate > MAX_RATE:
        raise Refused(f"must have at most {MAX_RATE} frames a second, not {rate:g}")
    return frames, rate


def _codec(stream: Stream) -> str:
    """Return the name of a track's codec, independent of the decoder."""
    context: CodecContext | None = stream.codec_context  # None without a decoder, whatever its type says
    return str(context.codec.canonical_name) if isinstance(context, CodecContext) else _UNKNOWN


def _check_size(size: Size) -> None:
    width, height = size
    if not 0 < max(size) <= MAX_SIDE:
        raise Refused(f"must be at most {MAX_SIDE} x {MAX_SIDE}, not {width} x {height}")


def _sound(opened: Callable[[], InputContainer], most: int) -> NDArray[np.float32]:
    """Return the first track of sound, mono, at most `most` samples; empty if there is none."""
    with opened() as container:
        if not container.streams.audio:
            return np.zeros(0, np.float32)
        stream = container.streams.audio[0]
        if _codec(stream) == _UNKNOWN:
            raise Refused("has sound in an unknown codec")
        pieces: list[NDArray[np.float32]] = []
        left = most
        for piece in _mono(container.decode(stream)):
            pieces.append(piece[:left])
            left -= len(pieces[-1])
            if left <= 0:
                break
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)


def _mono(frames: Iterator[AudioFrame]) -> Iterator[NDArray[np.float32]]:
    """Yield the mean of all channels, at 16 kHz."""
    resampler = AudioResampler(format="fltp", rate=SAMPLE_RATE)
    for frame in _with_end(frames):
        for piece in resampler.resample(frame):
            mean = piece.to_ndarray().mean(axis=0, dtype=np.float32)
            yield np.clip(np.nan_to_num(mean), -1, 1).astype(np.float32, copy=False)


def _with_end(frames: Iterator[AudioFrame]) -> Iterator[AudioFrame | None]:
    yield from frames
    yield None


def _send_pictures(
    container: InputContainer,
    seen: tuple[PlannedFrame, ...],
    frames: int,
    rate: float,
    sound: NDArray[np.float32],
    order: Order,
) -> None:
    """Send the header, the sound, and every picture once all its frames are decoded."""
    decoded = _frames(container, {i for moment in seen for i in (moment.frame, *moment.stack)})
    index, frame = next(decoded, (0, None))
    if frame is None:
        raise Refused("is damaged")
    size = _upright(frame).shape[1::-1]
    layout = Layout((size[0], size[1]), order.most_pixels)
    header = Header(frames, rate, size[0], size[1], len(sound))
    _send(b"H", json.dumps(asdict(header)).encode())
    _send(b"S", _bytes(sound))
    kept = {index: frame}
    for moment in seen:
        for wanted in (moment.frame, *moment.stack):
            while wanted not in kept:
                # A frame that cannot be decoded repeats the last one that could.
                later, frame = next(decoded, (wanted, frame))
                kept[later] = frame
        _send(b"P", _bytes(_upright(kept[moment.frame], layout.frame)))
        if moment.stack:
            _send(b"P", _bytes(_joined([kept[i] for i in moment.stack], layout)))
        last = max(moment.frame, *moment.stack, 0)
        kept = {i: it for i, it in kept.items() if i >= last}


def _frames(container: InputContainer, wanted: set[int]) -> Iterator[tuple[int, VideoFrame]]:
    """Yield the frames at these indices, in order."""
    stream = _pictures_of(container)
    context = stream.codec_context
    context.thread_count, context.thread_type = 1, "NONE"
    context.options = {"max_pixels": str(MAX_SIDE * MAX_SIDE)}
    for index, frame in enumerate(container.decode(stream)):
        if index in wanted:
            _check_size((frame.width, frame.height))
            yield index, frame
        if index >= max(wanted):
            return


def _upright(frame: VideoFrame, size: Size | None = None) -> Pixels:
    """Return RGB [height, width, 3], rotated as the file states; of `size` after rotation."""
    turns = round(frame.rotation / 90) % 4
    width, height = (size if turns % 2 == 0 else size[::-1]) if size else (frame.width, frame.height)
    shown = frame.reformat(width, height, "rgb24", interpolation=Interpolation.BICUBIC, threads=1)
    return np.rot90(shown.to_ndarray(), turns)


def _joined(frames: list[VideoFrame], layout: Layout) -> Pixels:
    """Return the frames in a grid, with black lines between them."""
    (width, height), count = layout.cell(len(frames)), len(frames)
    columns, _ = grid(count, (width, height))
    total = layout.stack(count)
    picture = np.zeros((total[1], total[0], 3), np.uint8)
    for i, frame in enumerate(frames):
        y, x = (i // columns) * (height + LINE), (i % columns) * (width + LINE)
        picture[y : y + height, x : x + width] = _upright(frame, (width, height))
    return picture


def _bytes(array: Pixels | NDArray[np.float32]) -> memoryview:
    return np.ascontiguousarray(array).data.cast("B")
