"""WebSocket frames of a client, as bytes."""

import json
import struct
from typing import Any, Final

TEXT: Final = 0x81
FIRST_FRAGMENT: Final = 0x01
FRAGMENT: Final = 0x00
PING: Final = 0x89
BLOCK: Final = 2**16
"""The number of bytes per write."""


def frame(head: int, payload: bytes = b"") -> bytes:
    """Return a frame with the first byte `head`. The mask of zeros leaves the payload unchanged."""
    size = len(payload)
    if size < 126:
        length = bytes((0x80 | size,))
    elif size < 2**16:
        length = struct.pack("!BH", 0x80 | 126, size)
    else:
        length = struct.pack("!BQ", 0x80 | 127, size)
    return bytes((head,)) + length + bytes(4) + payload


def event(name: str, **fields: Any) -> bytes:
    """Return a text frame with an event."""
    return frame(TEXT, json.dumps({"type": name, **fields}).encode())


def block(of: bytes) -> bytes:
    """Return copies of a frame, about `BLOCK` bytes in sum."""
    return of * max(BLOCK // len(of), 1)
