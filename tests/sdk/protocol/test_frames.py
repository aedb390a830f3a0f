"""Tests of camera frames: which files are accepted, and with which second of audio they are sent."""

import base64
from pathlib import Path

import pytest

from antiphon import Image, ImageError
from antiphon.protocol.frames import LARGEST_FRAME, FrameQueue, frame_bytes
from tests.support.drawing import encoded, picture

SECOND = 16_000


def text(name: bytes) -> str:
    return base64.b64encode(name).decode()


def texts(names: bytes) -> list[str]:
    return [text(bytes([name])) for name in names]


def queue_of(names: bytes) -> FrameQueue:
    queue = FrameQueue()
    for name in names:
        queue.put(bytes([name]))
    return queue


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_frame_bytes_of_each_format_are_those_of_the_file(kind: str, tmp_path: Path) -> None:
    data = encoded(picture(), kind)
    path = tmp_path / "picture"
    path.write_bytes(data)
    assert [frame_bytes(given) for given in (data, Image(data), path, str(path))] == [data] * 4


@pytest.mark.parametrize("data", [b"", b"GIF89a", b"RIFF\0\0\0\0WAVE"])
def test_frame_bytes_of_another_file_are_refused(data: bytes) -> None:
    with pytest.raises(ImageError, match="The picture is no JPEG, PNG or WebP file"):
        frame_bytes(data)


def test_frame_bytes_of_a_large_file_and_of_another_type_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    path.write_bytes(b"\xff\xd8\xff" + bytes(LARGEST_FRAME))
    with pytest.raises(ImageError, match=r"large\.jpg has more than 1048576 bytes"):
        frame_bytes(path)
    with pytest.raises(ImageError, match="not list"):
        frame_bytes([1, 2])  # type: ignore[arg-type]


def test_waiting_frames_go_with_the_next_audio_once_and_a_fifth_drops_the_oldest() -> None:
    queue = queue_of(b"ab")
    assert queue.take(SECOND) == texts(b"ab")
    assert queue.take(SECOND) == []
    assert queue_of(b"abcdef").take(SECOND) == texts(b"cdef")


def test_frames_beyond_four_in_a_second_wait_for_the_next_one() -> None:
    queue = queue_of(b"abc")
    assert queue.take(SECOND // 2) == texts(b"abc")
    queue.put(b"d")
    queue.put(b"e")
    assert queue.take(SECOND // 4) == texts(b"d")
    assert queue.take(SECOND // 4) == []
    assert queue.take(SECOND // 4) == texts(b"e")


def test_second_that_the_server_completes_resets_the_frame_count() -> None:
    queue = queue_of(b"abcd")
    assert queue.take(100) == texts(b"abcd")
    queue.put(b"e")
    queue.next_second()
    assert queue.take(100) == texts(b"e")
