"""Video files that are made to do harm, or that contain something other than a video."""

import io
from functools import cache

import av
import numpy as np

from tests.support.videos import SAMPLE_RATE, numbered, tone, video


@cache
def sound_alone() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("aac", rate=SAMPLE_RATE, layout="mono")
        clip = av.AudioFrame.from_ndarray(tone(1.0)[None], "fltp", "mono")
        clip.sample_rate = SAMPLE_RATE
        resampler = av.AudioResampler("fltp", "mono", SAMPLE_RATE, stream.frame_size)
        for piece in (*resampler.resample(clip), None):
            output.mux(stream.encode(piece))
    return file.getvalue()


@cache
def covered() -> bytes:
    """An MP4 file with sound, and a picture as its cover."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        sound = output.add_stream("aac", rate=SAMPLE_RATE, layout="mono")
        cover = output.add_stream("mjpeg", rate=1)
        cover.width, cover.height, cover.pix_fmt = 64, 64, "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), "rgb24")
        output.mux([*cover.encode(frame), *cover.encode(None)])
        clip = av.AudioFrame.from_ndarray(np.zeros((1, sound.frame_size), np.float32), "fltp", "mono")
        clip.sample_rate = SAMPLE_RATE
        output.mux([*sound.encode(clip), *sound.encode(None)])
    return file.getvalue()


@cache
def many_tracks(count: int = 300) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        pictures = output.add_stream("libx264", rate=10)
        pictures.width, pictures.height, pictures.pix_fmt = 192, 64, "yuv420p"
        tracks = [output.add_stream("pcm_s16le", rate=8000, layout="mono") for _ in range(count)]
        for pixels in numbered(10):
            output.mux(pictures.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        output.mux(pictures.encode(None))
        clip = av.AudioFrame.from_ndarray(np.zeros((1, 80), np.int16), "s16", "mono")
        clip.sample_rate = 8000
        for track in tracks:
            output.mux(track.encode(clip))
    return file.getvalue()


def retagged(data: bytes, old: bytes, new: bytes) -> bytes:
    assert old in data
    return data.replace(old, new)


@cache
def huge() -> bytes:
    """One black frame of 8192 x 8192, in a few KiB."""
    return video([np.zeros((8192, 8192, 3), np.uint8)], options={"preset": "ultrafast"})


@cache
def huge_in_disguise() -> bytes:
    size, small = (8192).to_bytes(2, "big") * 2, (64).to_bytes(2, "big") * 2
    return retagged(huge(), size, small)


def noisy(data: bytes) -> bytes:
    begin, end = data.index(b"mdat") + 4, data.index(b"moov") - 4
    noise = np.random.default_rng(0).integers(0, 256, end - begin, np.uint8).tobytes()
    return data[:begin] + noise + data[end:]
