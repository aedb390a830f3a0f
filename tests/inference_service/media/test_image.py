"""Encoded pictures on their way to the model: what is read, and what is refused and how."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from inference_service.errors import UnitRefused
from inference_service.media.image import MAX_BYTES, decode_frame, decode_picture
from tests.support.drawing import encoded, jpeg, picture

FIELD = "duplex.frames[0]"
SIDE = 64


def refusal(data: bytes, *, whole: bool = False) -> str:
    """Why a frame is refused, or a `whole` picture."""
    with pytest.raises(UnitRefused) as refused:
        decode_picture(data, field=FIELD) if whole else decode_frame(data, field=FIELD, side=SIDE)
    failure = refused.value.failure
    assert (failure.reason, failure.field, failure.retryable) == ("IMAGE_INVALID", FIELD, False)
    assert FIELD in failure.message
    return failure.message


def declared_png(width: int, height: int) -> bytes:
    """A PNG that says it is this large, and holds next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(64))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("size", [(640, 480), (480, 640), (64, 64), (9, 7), (1, 1)])
def test_picture_becomes_a_square_of_rgb_bytes(kind: str, size: tuple[int, int]) -> None:
    pixels = decode_frame(encoded(Image.new("RGB", size, (200, 30, 30)), kind), field=FIELD, side=SIDE)
    assert (pixels.shape, pixels.dtype) == ((SIDE, SIDE, 3), np.uint8)
    assert np.abs(pixels.astype(int) - (200, 30, 30)).max() <= 12


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "LA", "CMYK"])
def test_every_colour_mode_becomes_rgb(mode: str) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    pixels = decode_frame(encoded(picture().convert(mode), kind), field=FIELD, side=SIDE)
    assert pixels.shape == (SIDE, SIDE, 3)


def test_transparent_pixels_are_white() -> None:
    image = Image.new("RGBA", (40, 40), (0, 0, 0, 0))
    image.paste((255, 0, 0, 255), (10, 10, 30, 30))
    pixels = decode_frame(encoded(image, "PNG"), field=FIELD, side=SIDE)
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[32, 32].tolist() == [255, 0, 0]


def test_of_an_animation_the_first_picture_is_seen() -> None:
    first, second = Image.new("RGB", (32, 32), "red"), Image.new("RGB", (32, 32), "blue")
    file = io.BytesIO()
    first.save(file, "WEBP", save_all=True, append_images=[second], lossless=True)
    pixels = decode_frame(file.getvalue(), field=FIELD, side=SIDE)
    assert pixels[32, 32, 0] > 240


@pytest.mark.parametrize("size", [(640, 480), (9, 7), (1, 1), (400, 20), (20, 400)])
def test_picture_as_it_is_keeps_its_shape(size: tuple[int, int]) -> None:
    pixels = decode_picture(encoded(Image.new("RGB", size, (200, 30, 30)), "PNG"), field=FIELD)
    assert (pixels.shape, pixels.dtype) == ((size[1], size[0], 3), np.uint8)
    assert (pixels == (200, 30, 30)).all()


def test_picture_as_it_is_has_every_pixel_and_white_where_it_is_transparent() -> None:
    noise = Image.effect_noise((200, 150), 60).convert("RGB")
    assert np.array_equal(decode_picture(encoded(noise, "PNG"), field=FIELD), np.array(noise))
    clear = Image.new("RGBA", (40, 40), (0, 0, 0, 0))
    assert (decode_picture(encoded(clear, "PNG"), field=FIELD) == 255).all()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"hello",
        bytes(1000),
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        b"RIFF\x04\x00\x00\x00WEBP",
        encoded(picture(), "GIF"),
        encoded(picture(), "BMP"),
        encoded(picture(), "TIFF"),
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.4",
    ],
)
def test_data_other_than_jpeg_png_webp_is_refused(data: bytes) -> None:
    refusal(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_picture_is_refused(kind: str, share: float) -> None:
    noise = Image.effect_noise((200, 150), 60).convert("RGB")
    data = encoded(noise, kind)
    refusal(data[: int(len(data) * share)])


def test_damaged_picture_is_refused() -> None:
    data = bytearray(encoded(Image.effect_noise((200, 150), 60).convert("RGB"), "PNG"))
    middle = len(data) // 3
    data[middle : middle + 400] = bytes(400)
    refusal(bytes(data))


def test_too_many_bytes_are_refused_unread() -> None:
    assert str(MAX_BYTES) in refusal(jpeg() + bytes(MAX_BYTES))


@pytest.mark.parametrize("size", [(2001, 2000), (4_000_001, 1), (20_000, 20_000), (60_000, 60_000)])
def test_declared_size_is_read_before_anything_is_decoded(size: tuple[int, int]) -> None:
    assert "pixels" in refusal(declared_png(*size))


def test_four_megapixels_are_allowed() -> None:
    data = encoded(Image.new("RGB", (2000, 2000), "green"), "PNG")
    assert decode_frame(data, field=FIELD, side=SIDE).shape == (SIDE, SIDE, 3)


@pytest.mark.parametrize("size", [(401, 20), (20, 401), (21, 1)])
def test_picture_as_it_is_that_is_a_thin_strip_is_refused(size: tuple[int, int]) -> None:
    message = refusal(encoded(Image.new("RGB", size), "PNG"), whole=True)
    assert message == f"{FIELD} must be at most 20 times as long as wide, not {size[0]} x {size[1]}."


@pytest.mark.parametrize(
    "data", [b"", b"hello", declared_png(20_000, 20_000), jpeg()[:400], jpeg() + bytes(MAX_BYTES)]
)
def test_picture_as_it_is_is_refused_like_any(data: bytes) -> None:
    assert refusal(data, whole=True) == refusal(data)
