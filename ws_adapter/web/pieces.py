"""Long frames of a WebSocket in pieces, as which their sender might have sent them."""

import struct
from collections.abc import Callable, Generator
from typing import Final, Protocol

PIECE: Final = 2**18
"""Bytes of the shortest piece of a frame; one that is shorter than two is left whole."""

_FIN: Final = 0x80
_MASKED: Final = 0x80
_TWO_BYTES: Final = 126
_EIGHT_BYTES: Final = 127
"""In place of a length: it follows in so many bytes."""

_LENGTH: Final = struct.Struct("!Q")
_CONTINUATION: Final = 0x0
"""The opcode of a fragment that is not the first."""


class Stream(Protocol):
    """What has come and was not read yet."""

    buffer: bytearray
    eof: bool

    def read_exact(self, size: int) -> Generator[None, None, bytes | bytearray]:
        """So many bytes. Raises `EOFError` if the stream ends within them."""


class Pieces:
    """Long frames in pieces: `read_exact` takes the place of the stream's, from which frames are parsed.

    The library waits until a frame is whole, then copies it twice and unmasks it, all in one go: 32 MiB kept
    the event loop for 35 ms. Given as fragments, as which a client might have sent it, it is unmasked as it
    comes. The parser reads of each frame two bytes, then the rest of a long length if there is one, then the
    key of the mask, then the body.
    """

    def __init__(self, reader: Stream, largest: Callable[[], int | None]) -> None:
        """`largest` tells how many bytes a frame may have: longer ones, which are refused, stay whole."""
        self._buffer = reader.buffer
        self._stream = reader
        self._read = reader.read_exact
        self._largest = largest
        self._given: list[bytes] = []
        """What is read next: parts of the head of a piece."""
        self._parts = 0
        """That come from the stream after that, before the next head."""
        self._left = 0
        """Bytes of a long frame that are not yet in a piece."""
        self._first = 0
        """The first byte of that frame, until its first piece is made."""
        self._key = b""
        self.is_between = True
        """Whether nothing of the frame was read that is parsed next."""

    def read_exact(self, size: int) -> Generator[None, None, bytes | bytearray]:
        """The next part of a frame, or of a piece of one. Raises `EOFError` if the stream ends within it."""
        if self._given:
            return self._given.pop(0)
        if self._parts:
            part = yield from self._read(size)
            self._parts -= 1
            self.is_between = not (self._parts or self._left)
            return part
        if self._left:
            yield from self._begin_piece()
        else:
            self.is_between = False
            yield from self._begin_frame(size)
        return self._given.pop(0)

    def _begin_frame(self, size: int) -> Generator[None, None, None]:
        head = bytes((yield from self._read(size)))
        length = head[1] & ~_MASKED
        if length != _EIGHT_BYTES or not head[1] & _MASKED:
            self._given, self._parts = [head], 3 if length == _TWO_BYTES else 2
            return
        extended = bytes((yield from self._read(_LENGTH.size)))
        (length,) = _LENGTH.unpack(extended)
        largest = self._largest()
        if length < 2 * PIECE or (largest is not None and length > largest):
            self._given, self._parts = [head, extended], 2
            return
        self._key = bytes((yield from self._read(4)))
        self._first, self._left = head[0], length
        yield from self._begin_piece()

    def _begin_piece(self) -> Generator[None, None, None]:
        """All that has come, in whole periods of the mask; what remains is never shorter than a piece."""
        is_last = self._left < 2 * PIECE
        least = self._left if is_last else PIECE
        while len(self._buffer) < least:
            if self._stream.eof:
                raise EOFError("the stream ends within a frame")
            yield
        size = self._left if is_last else min(len(self._buffer), self._left - PIECE) & ~3
        self._left -= size
        first = self._first & (0xFF if is_last else ~_FIN)
        self._first = self._first & ~0x0F | _CONTINUATION
        head = bytes((first, _MASKED | _EIGHT_BYTES))
        self._given, self._parts = [head, _LENGTH.pack(size), self._key], 1
