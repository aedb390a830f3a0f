"""Pictures in events: checked by content and header, handed on as they are."""

import io
import re
import warnings
from collections.abc import Sequence
from typing import Final

from PIL import Image, UnidentifiedImageError

from ws_adapter.codec import decode_base64
from ws_adapter.dialects.errors import invalid, missing
from ws_adapter.dialects.events import MAX_FRAMES, Picture, PictureObject

MAX_FRAME_BYTES: Final = 2**20
MAX_FRAME_PIXELS: Final = 4_000_000
FORMATS: Final = ("JPEG", "PNG", "WEBP")

_LONGEST_BASE64: Final = MAX_FRAME_BYTES * 2
"""More text than this is no picture of the permitted size, however much white space is in it."""


def read_frames(pictures: Sequence[Picture], path: str) -> tuple[bytes, ...]:
    """The encoded pictures of a list; `path` is that of the list. Raises `Refusal`."""
    if len(pictures) > MAX_FRAMES:
        raise invalid(path, f"expected at most {MAX_FRAMES} pictures, got {len(pictures)}")
    return tuple(read_frame(picture, f"{path}[{i}]") for i, picture in enumerate(pictures))


def read_frame(picture: Picture, path: str) -> bytes:
    """One encoded picture: JPEG, PNG or WebP by content, at most 1 MiB and 4 megapixels. Raises `Refusal`.

    Only the header is read here: the worker decodes it.
    """
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
    width, height = _size(data, path)
    if width * height > MAX_FRAME_PIXELS:
        raise invalid(path, f"expected at most {MAX_FRAME_PIXELS} pixels, got {width} x {height}")
    return data


def _size(data: bytes, path: str) -> tuple[int, int]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                return image.size
    except Image.DecompressionBombError as error:
        # Pillow refuses to say the size in any other way.
        size = re.search(r"\d+", str(error))
        got = f"got {size[0]}" if size else "got far more"
        raise invalid(path, f"expected at most {MAX_FRAME_PIXELS} pixels, {got}") from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, OverflowError, EOFError):
        raise invalid(path, "expected a JPEG, PNG or WebP picture, got something else") from None
