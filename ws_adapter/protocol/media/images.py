"""Pictures in events: checked by content and header, passed on unchanged.

No picture is decoded here, the worker does that. Its size is read in a bounded walk over its container: a
file may consist of endless markers, fill bytes or empty chunks.
"""

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from ws_adapter.protocol.wire.codec import decode_base64
from ws_adapter.protocol.wire.errors import invalid, missing
from ws_adapter.protocol.wire.events import MAX_FRAMES, Picture, PictureObject

MAX_FRAME_BYTES: Final = 2**20
MAX_FRAME_PIXELS: Final = 4_000_000

MAX_SEGMENTS: Final = 128
"""The most segments of a JPEG up to the one with its size. Cameras write a dozen; a colour profile and a
thumbnail may add a few dozen of 64 KiB, and a file of 1 MiB has no room for more of those."""

MAX_FILL_BYTES: Final = 64
"""The most 0xFF fill bytes before the markers of a JPEG. Padding to even addresses takes one for each."""

_LONGEST_BASE64: Final = MAX_FRAME_BYTES * 2
"""The most characters of base64 of a permitted picture, with any amount of white space."""

_FILL: Final = 0xFF
_SIZES: Final = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of segments with the size: all kinds of SOF."""
_STANDALONE: Final = frozenset({0x01, *range(0xD0, 0xD9)})
"""Markers without a length: TEM, RST, SOI."""
_PICTURE_DATA: Final = frozenset({0xD9, 0xDA})
"""EOI and SOS: no size follows them."""

_PNG: Final = b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR"
_EXTENDED_BYTES: Final = 10
"""The least bytes in the `VP8X` chunk of a WebP."""

Size: TypeAlias = tuple[int, int]
"""Width and height in pixels."""


def read_frames(pictures: Sequence[Picture], path: str) -> tuple[bytes, ...]:
    """Read the encoded pictures of a list at `path`. Raises `Refusal`."""
    if len(pictures) > MAX_FRAMES:
        raise invalid(path, f"expected at most {MAX_FRAMES} pictures, got {len(pictures)}")
    return tuple(read_frame(picture, f"{path}[{i}]") for i, picture in enumerate(pictures))


def read_frame(picture: Picture, path: str) -> bytes:
    """Read one encoded picture: JPEG, PNG or WebP by content, at most 1 MiB and 4 megapixels. Raises
    `Refusal`."""
    text = (picture.data or picture.base64) if isinstance(picture, PictureObject) else picture
    if not text:
        raise missing(path, "base64 of a picture")
    if text.startswith("data:"):
        text = text.partition(",")[2]
    if len(text) > _LONGEST_BASE64:
        size = len(text) * 3 // 4
        raise invalid(path, f"expected at most {MAX_FRAME_BYTES} bytes, got about {size}")
    data = decode_base64(text, path)
    if len(data) > MAX_FRAME_BYTES:
        raise invalid(path, f"expected at most {MAX_FRAME_BYTES} bytes, got {len(data)}")
    sides = read_size(data)
    if sides is None or not all(sides):
        raise invalid(path, "expected a JPEG, PNG or WebP picture, got something else")
    width, height = sides
    if width * height > MAX_FRAME_PIXELS:
        raise invalid(path, f"expected at most {MAX_FRAME_PIXELS} pixels, got {width} x {height}")
    return data


def read_size(data: bytes) -> Size | None:
    """Return the size in a picture's header; None if the header has none.

    Reads the headers of at most `MAX_SEGMENTS` segments, and copies no data.
    """
    try:
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg_size(data)
        if data.startswith(_PNG):
            width, height = struct.unpack_from(">II", data, len(_PNG))
            return width, height
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp_size(data)
    except (struct.error, IndexError):  # the data ends too early
        pass
    return None


def _jpeg_size(data: bytes) -> Size | None:
    position, fill_bytes = 2, 0
    for _ in range(MAX_SEGMENTS):
        if data[position] != _FILL:
            return None
        position += 1
        while data[position] == _FILL:
            position, fill_bytes = position + 1, fill_bytes + 1
            if fill_bytes > MAX_FILL_BYTES:
                return None
        marker = data[position]
        position += 1
        if marker in _SIZES:
            height, width = struct.unpack_from(">HH", data, position + 3)
            return width, height
        if marker in _PICTURE_DATA:
            return None
        if marker not in _STANDALONE:
            (length,) = struct.unpack_from(">H", data, position)
            if length < 2:
                return None
            position += length
    return None


def _webp_size(data: bytes) -> Size | None:
    """Return the size from the first chunk of a WebP, which has one of three forms."""
    kind, size = struct.unpack_from("<4sI", data, 12)
    if kind == b"VP8X" and size >= _EXTENDED_BYTES:
        left, right = data[24:27], data[27:30]
        if len(right) < 3:
            return None
        return 1 + int.from_bytes(left, "little"), 1 + int.from_bytes(right, "little")
    if kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    return None
