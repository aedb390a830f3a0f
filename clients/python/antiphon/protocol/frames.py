"""Camera frames: their checks, and their queue for the next audio."""

import base64
from collections import deque
from pathlib import Path
from typing import Final

from antiphon.audio.samples import INPUT_RATE_HZ
from antiphon.errors import ImageError
from antiphon.protocol.messages import Image

MOST_FRAMES: Final = 4
"""The number of frames that a server uses in one second of audio."""

LARGEST_FRAME: Final = 2**20
"""The largest size of one frame's file in bytes."""

_JPEG: Final = b"\xff\xd8\xff"
_PNG: Final = b"\x89PNG\r\n\x1a\n"


def frame_bytes(picture: Image | bytes | str | Path) -> bytes:
    """Return the bytes of a picture file, which is given as bytes or as its path.

    Raises `ImageError` for another file and for one of more than 1 MiB, and OSError.
    """
    if isinstance(picture, Image):
        picture = picture.data
    if isinstance(picture, str | Path):
        with Path(picture).open("rb") as file:
            name, data = str(picture), file.read(LARGEST_FRAME + 1)
    elif isinstance(picture, bytes):
        name, data = "The picture", picture
    else:
        kind = type(picture).__name__
        raise ImageError(f"A picture is an Image, the bytes of a file or a path, not {kind}.")
    if not _is_picture(data):
        raise ImageError(f"{name} is no JPEG, PNG or WebP file.")
    if len(data) > LARGEST_FRAME:
        raise ImageError(f"{name} has more than {LARGEST_FRAME} bytes. Scale it down.")
    return data


class FrameQueue:
    """Base64 frames that wait for the next audio; the queue keeps the newest four.

    At most four frames go with one second of sent audio, as the server cuts it into units.
    """

    def __init__(self) -> None:
        self._waiting: deque[str] = deque(maxlen=MOST_FRAMES)
        self._samples = 0
        """The samples of the current second that were sent."""
        self._sent = 0
        """The number of frames that were sent with the current second."""

    def put(self, data: bytes) -> None:
        """Add a frame; a fifth waiting frame replaces the oldest one."""
        self._waiting.append(base64.b64encode(data).decode("ascii"))

    def take(self, samples: int) -> list[str]:
        """Return the frames that go with the next `samples` of audio, oldest first."""
        count = min(len(self._waiting), MOST_FRAMES - self._sent)
        taken = [self._waiting.popleft() for _ in range(count)]
        self._sent += count
        self._samples += samples
        if self._samples >= INPUT_RATE_HZ:
            self._samples %= INPUT_RATE_HZ
            self._sent = 0
        return taken

    def next_second(self) -> None:
        """Begin the next second, since the server pads the current one with silence."""
        self._samples = self._sent = 0


def _is_picture(data: bytes) -> bool:
    return data.startswith((_JPEG, _PNG)) or (data[:4] == b"RIFF" and data[8:12] == b"WEBP")
