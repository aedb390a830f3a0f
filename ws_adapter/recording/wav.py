"""The audio of one direction as a WAV file of float32 samples, which is valid after every write."""

import struct
from typing import Final

SAMPLE_BYTES: Final = 4

_HEADER: Final = struct.Struct("<4sI4s 4sIHHIIHHH 4sII 4sI")
HEADER_BYTES: Final = _HEADER.size
_FLOAT: Final = 3

LONGEST: Final = (2**32 - 1 - HEADER_BYTES) // SAMPLE_BYTES
"""The most samples of a WAV file, whose header has 32 bits for the number of bytes."""

JITTER_S: Final = 0.25
"""The longest gap in seconds that is removed between two clips; network jitter would otherwise insert audible
pauses into words."""


def header(samples: int, rate_hz: int) -> bytes:
    """Return the WAV header of `samples` float32 samples of one channel."""
    size = samples * SAMPLE_BYTES
    return _HEADER.pack(
        *(b"RIFF", HEADER_BYTES - 8 + size, b"WAVE"),
        *(b"fmt ", 18, _FLOAT, 1, rate_hz, rate_hz * SAMPLE_BYTES, SAMPLE_BYTES, 8 * SAMPLE_BYTES, 0),
        *(b"fact", 4, samples),
        *(b"data", size),
    )


class Track:
    """The track of one direction, with its clips in time order. `length` is in samples."""

    def __init__(self, file: str, rate_hz: int) -> None:
        self.file = file
        self.rate_hz = rate_hz
        self.length = 0

    @property
    def end(self) -> int:
        """The size of the file in bytes."""
        return HEADER_BYTES + self.length * SAMPLE_BYTES if self.length else 0

    def place(self, at_s: float) -> int:
        """Return the index of the first sample of a clip that began `at_s` seconds after the start of the
        track.

        Clips never overlap: an early clip directly follows the clip before it.
        """
        wanted = round(at_s * self.rate_hz)
        return self.length if wanted - self.length < JITTER_S * self.rate_hz else wanted
