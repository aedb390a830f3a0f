"""One direction's audio as a WAV file of float32 samples that is whole after every write."""

import struct
from typing import Final

SAMPLE_BYTES: Final = 4

_HEADER: Final = struct.Struct("<4sI4s 4sIHHIIHHH 4sII 4sI")
HEADER_BYTES: Final = _HEADER.size
_FLOAT: Final = 3

LONGEST: Final = (2**32 - 1 - HEADER_BYTES) // SAMPLE_BYTES
"""The most samples of a WAV file, which counts its bytes in 32 bits."""

JITTER_S: Final = 0.25
"""The lateness in seconds up to which a clip directly follows the previous one: network jitter would
otherwise insert audible pauses into words."""


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
    """The clips of one direction on the session's time line. `length` is in samples."""

    def __init__(self, file: str, rate_hz: int) -> None:
        self.file = file
        self.rate_hz = rate_hz
        self.length = 0

    @property
    def end(self) -> int:
        """Size of the file in bytes."""
        return HEADER_BYTES + self.length * SAMPLE_BYTES if self.length else 0

    def place(self, at_s: float) -> int:
        """Return the sample at which a clip begins that was heard `at_s` seconds after the start of the
        track.

        Clips never overlap: one that comes early follows the one before it.
        """
        wanted = round(at_s * self.rate_hz)
        return self.length if wanted - self.length < JITTER_S * self.rate_hz else wanted
