"""Text messages that are one frame, which most of what comes is."""

import struct
from typing import Final

from websockets.frames import apply_mask  # type: ignore[attr-defined]

from ws_adapter.web.pieces import PIECE

_TEXT: Final = 0x81
"""The first byte of a text message that is one frame."""

_MASKED: Final = 0x80
_KEY_BYTES: Final = 4
_TWO_BYTES: Final = struct.Struct("!2xH")
_EIGHT_BYTES: Final = struct.Struct("!2xQ")
_LENGTHS: Final = {126: _TWO_BYTES, 127: _EIGHT_BYTES}
_LONGEST_HEAD: Final = _EIGHT_BYTES.size + _KEY_BYTES


class WholeFrames:
    """Gathers one frame at a time.

    It costs a fifth of what the library's parser does, which copies a frame three times and takes a generator
    for each part of its head.
    """

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._head = 0
        """Bytes of the head of the frame that is gathered."""
        self._missing = 0
        """Bytes of it that are still to come."""

    def take(self, data: bytes, most: int | None) -> tuple[bytes | None, bytes]:
        """What was said in a frame that `data` completes, if any, and what else is in `data`.

        Without a frame all that is returned is for the parser; none of it is if the frame goes on. `most` is
        how many bytes a message may have. Nothing but short text is taken; offences are the parser's, too.
        """
        if not self._parts and not self._begin(data, most):
            return None, data
        self._parts.append(data)
        self._missing -= len(data)
        if self._missing > 0:
            return None, b""
        frame = self.give_back()
        head, end = self._head, len(frame) + self._missing
        text = apply_mask(memoryview(frame)[head:end], frame[head - _KEY_BYTES : head])
        return text, frame[end:]

    def give_back(self) -> bytes:
        """All that is gathered, which is forgotten."""
        parts, self._parts = self._parts, []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _begin(self, data: bytes, most: int | None) -> bool:
        """Whether a frame begins that is to be gathered; its head has come as a whole."""
        if len(data) < _LONGEST_HEAD or data[0] != _TEXT or not data[1] & _MASKED:
            return False
        length, size = data[1] & ~_MASKED, 2
        if (extended := _LENGTHS.get(length)) is not None:
            (length,), size = extended.unpack_from(data), extended.size
        if length >= 2 * PIECE or (most is not None and length > most):
            return False
        self._head = size + _KEY_BYTES
        self._missing = self._head + length
        return True
