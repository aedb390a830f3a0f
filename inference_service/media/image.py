"""Encoded pictures become small arrays: dimensions are read before anything is decoded."""

import warnings
from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from antiphon.semconv import Reason
from inference_service.errors import UnitRefused

MAX_FRAMES = 4
"""Pictures of one unit."""
MAX_BYTES = 1 << 20
"""Size of an encoded picture."""
MAX_PIXELS = 4_000_000
"""Width times height, as declared by the picture."""
FORMATS = ("JPEG", "PNG", "WEBP")

Pixels = NDArray[np.uint8]

warnings.filterwarnings("error", category=Image.DecompressionBombWarning)


def decode_frame(data: bytes, *, field: str, side: int) -> Pixels:
    """The picture in `data`, squeezed into a square: RGB, uint8, [side, side, 3].

    JPEG, PNG or WebP by content; of an animation the first picture. `field` is the path of `data` in its
    request. Raises `UnitRefused` (IMAGE_INVALID).
    """
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
        try:
            return _squeezed(image, side)
        except Exception:
            raise _refused(field, "is damaged or cut short") from None


def _squeezed(image: Image.Image, side: int) -> Pixels:
    image.draft("RGB", (4 * side, 4 * side))  # a JPEG is decoded no larger than needed
    flat = _on_white(image) if image.has_transparency_data else image.convert("RGB")
    return np.array(flat.resize((side, side), Image.Resampling.BILINEAR))


def _on_white(image: Image.Image) -> Image.Image:
    """What is transparent shows white paper, not whatever colour was stored there."""
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _refused(field: str, problem: str) -> UnitRefused:
    return UnitRefused(Reason.IMAGE_INVALID, f"{field} {problem}.", field)
