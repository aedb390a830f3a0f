"""Decoding of pictures to small arrays; dimensions are checked before decoding."""

import math
import warnings
from collections.abc import Callable
from io import BytesIO
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from antiphon.contract import Reason
from inference_service.errors import UnitRefused

MAX_FRAMES = 4
"""Limit of pictures of one unit."""
MAX_BYTES = 1 << 20
"""Limit of bytes of an encoded picture."""
MAX_PIXELS = 4_000_000
"""Limit of width times height, as declared by the picture."""
MAX_RATIO = 20
"""Limit of the ratio of the longer side to the shorter one, where a picture keeps its shape."""
FORMATS = ("JPEG", "PNG", "WEBP")

Pixels = NDArray[np.uint8]
T = TypeVar("T")

warnings.filterwarnings("error", category=Image.DecompressionBombWarning)


def decode_frame(data: bytes, *, field: str, side: int) -> Pixels:
    """Return the picture in `data`, resized to a square: RGB, uint8, [side, side, 3].

    JPEG, PNG or WebP by content; of an animation the first picture. `field` is the path of `data` in its
    request. Raises `UnitRefused` (IMAGE_INVALID).
    """
    return _decoded(data, field, lambda image: _squeezed(image, side))


def decode_picture(data: bytes, *, field: str) -> Pixels:
    """Return the picture in `data` in its own size: RGB, uint8, [height, width, 3]; otherwise as
    `decode_frame`.

    A picture whose sides differ by more than `MAX_RATIO` is refused too.
    """
    return _decoded(data, field, lambda image: np.array(_flat(image)), max_ratio=MAX_RATIO)


def picture_size(data: bytes, *, field: str) -> tuple[int, int]:
    """Return width and height of `decode_picture`'s result without decoding. Raises as it does."""
    return _decoded(data, field, lambda image: image.size, max_ratio=MAX_RATIO)


def _decoded(
    data: bytes, field: str, convert: Callable[[Image.Image], T], *, max_ratio: float = math.inf
) -> T:
    if len(data) > MAX_BYTES:
        raise _refused(field, f"must have at most {MAX_BYTES} bytes, not {len(data)}")
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        raise _refused(field, f"must have at most {MAX_PIXELS} pixels") from None
    except Exception:  # Pillow raises whatever its parsers raise
        raise _refused(field, "must be a JPEG, PNG or WebP picture") from None
    with image:
        width, height = image.size
        if width * height > MAX_PIXELS:
            raise _refused(field, f"must have at most {MAX_PIXELS} pixels, not {width} x {height}")
        if max(width, height) > max_ratio * min(width, height):
            raise _refused(
                field, f"must be at most {max_ratio} times as long as wide, not {width} x {height}"
            )
        try:
            return convert(image)
        except Exception:
            raise _refused(field, "is damaged or cut short") from None


def squeeze(pixels: Pixels, side: int) -> Pixels:
    """Return a picture [height, width, 3], resized to a square as in `decode_frame`."""
    return np.array(Image.fromarray(pixels, "RGB").resize((side, side), Image.Resampling.BILINEAR))


def _squeezed(image: Image.Image, side: int) -> Pixels:
    image.draft("RGB", (4 * side, 4 * side))  # a JPEG is decoded no larger than needed
    return np.array(_flat(image).resize((side, side), Image.Resampling.BILINEAR))


def _flat(image: Image.Image) -> Image.Image:
    return _on_white(image) if image.has_transparency_data else image.convert("RGB")


def _on_white(image: Image.Image) -> Image.Image:
    """Return the picture on a white background, which replaces the stored colour of transparent parts."""
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _refused(field: str, problem: str) -> UnitRefused:
    return UnitRefused(Reason.IMAGE_INVALID, f"{field} {problem}.", field)
