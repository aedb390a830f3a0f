"""Pictures for a chat, scaled down to the limits of a server."""

import io
import sys
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeAlias

from antiphon.protocol.messages import Image
from antiphon_command.output.failure import ExitCode, Failure

if TYPE_CHECKING:
    from PIL import Image as pillow

Size: TypeAlias = tuple[int, int]
"""The width and height in pixels."""

MOST_BYTES: Final = 2**20
MOST_PIXELS: Final = 4_000_000
LIMITS: Final = f"{MOST_BYTES >> 20} MiB and {MOST_PIXELS // 10**6} megapixels"
"""The limits of a server for a picture."""

_QUALITIES: Final = (90, 75, 60)
_SMALLER: Final = 0.7


def read_picture(path: str) -> Image:
    """Read a picture file; scale a picture that is too large for a server down, with a note.

    Without Pillow only the size of the file is checked. Raises OSError, and `Failure` for a picture that
    stays too large; its text names the remedy.
    """
    picture = Image.read(path)
    if find_spec("PIL") is not None:
        return _fitting(path, picture)
    if len(picture.data) > MOST_BYTES:
        remedy = "Scale it down, or have this command do so: pip install 'antiphon[image]'"
        raise _too_large(path, _mib(picture.data), remedy)
    return picture


def _fitting(path: str, picture: Image) -> Image:
    from PIL import Image as pillow

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.DecompressionBombWarning)
            with pillow.open(io.BytesIO(picture.data), formats=("JPEG", "PNG", "WEBP")) as image:
                before = image.size
                if len(picture.data) <= MOST_BYTES and before[0] * before[1] <= MOST_PIXELS:
                    return picture
                data, after = _scaled_down(image)
    except pillow.DecompressionBombError:
        raise _too_large(path, "more pixels than can be read safely", "Scale it down.") from None
    except (OSError, ValueError, SyntaxError):
        if len(picture.data) <= MOST_BYTES:
            return picture  # the server reports the problem
        raise _too_large(
            path, f"{_mib(picture.data)} and is damaged or no picture", "Send another."
        ) from None
    was, now = (
        f"{size[0]} x {size[1]}, {_mib(file)}" for size, file in ((before, picture.data), (after, data))
    )
    print(f"{path}: scaled down from {was} to {now}; a server takes {LIMITS}", file=sys.stderr, flush=True)
    return Image(data)


def _scaled_down(image: "pillow.Image") -> tuple[bytes, Size]:
    """Return the picture as a JPEG within the limits, upright and on white, and its size."""
    from PIL import Image as pillow
    from PIL import ImageOps

    size = _times(image.size, min(1.0, (MOST_PIXELS / (image.width * image.height)) ** 0.5))
    image.draft("RGB", size)  # decode a JPEG at a reduced size, which is at least `size`
    upright = ImageOps.exif_transpose(_on_white(image))
    if (upright.width < upright.height) != (size[0] < size[1]):
        size = size[1], size[0]
    while True:
        scaled = upright.resize(size, pillow.Resampling.LANCZOS)
        for quality in _QUALITIES:
            file = io.BytesIO()
            scaled.save(file, "JPEG", quality=quality)
            if file.tell() <= MOST_BYTES:
                return file.getvalue(), size
        size = _times(size, _SMALLER)


def _times(size: Size, factor: float) -> Size:
    return max(1, int(size[0] * factor)), max(1, int(size[1] * factor))


def _on_white(image: "pillow.Image") -> "pillow.Image":
    from PIL import Image as pillow

    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return pillow.alpha_composite(pillow.new("RGBA", image.size, "white"), image).convert("RGB")


def _too_large(path: str, size: str, remedy: str) -> Failure:
    return Failure(f"{path} has {size}; a server takes at most {LIMITS}. {remedy}", ExitCode.USAGE)


def _mib(data: bytes) -> str:
    return f"{len(data) / 2**20:.1f} MiB"
