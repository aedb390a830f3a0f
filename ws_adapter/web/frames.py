"""A scanner of WebSocket frame headers (RFC 6455, section 5.2). Pure: bytes in, headers out.

`websockets` handles every frame of one read before it calls any callback. 256 KiB of empty pings, 43,690 of
them, block the event loop for 0.3 s. The scanner counts frames before the library handles them.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
_CONTROL: Final = 0x8
"""The bit in the opcodes of Close, Ping and Pong."""

_FIN: Final = 0x80
_MASKED: Final = 0x80
_TWO_BYTES: Final = 126
_EIGHT_BYTES: Final = 127
"""The value that stands for a length in the next eight bytes."""

_KEY_BYTES: Final = 4
_LONGEST_HEAD: Final = 2 + 8 + _KEY_BYTES


class FrameHead(Struct, frozen=True, gc=False):
    """The header of a frame that begins at `start` of the last data. The payload has `size` bytes."""

    opcode: int
    is_last: bool
    is_control: bool
    """Whether the frame is a Close, a Ping or a Pong."""
    head_size: int
    size: int
    start: int


class FrameScanner:
    """A scanner of frames and of message ends in a byte stream, which may be split anywhere."""

    def __init__(self) -> None:
        self.whole: list[bool] = []
        """Whether each complete message is text, in order. The caller empties the list."""
        self.unfinished = 0
        """The received bytes of an incomplete message, with its frame headers."""
        self._head = b""
        """The bytes of an incomplete header."""
        self._left = 0
        """The bytes of the present frame that have not arrived."""
        self._is_data = False
        """Whether the present frame belongs to a message."""
        self._goes_on = False
        """Whether further frames of a started message follow."""
        self._is_text = False
        """Whether that message is text."""

    @property
    def is_between(self) -> bool:
        """Whether the stream is between two messages, and between two frames."""
        return not (self._left or self._head or self._goes_on)

    def skip(self, data: bytes) -> bool:
        """Skip data within one frame; return False, without effect, if it ends or begins a frame."""
        size = len(data)
        if self._left <= size:
            return False
        self._left -= size
        self.unfinished += size
        return True

    def scan(self, data: bytes) -> Iterator[FrameHead]:
        """Yield the header of each frame that begins in `data`, before later bytes are scanned."""
        at, size = 0, len(data)
        self.unfinished += size
        while at < size:
            if not self._left:
                came = len(self._head)
                self._head += data[at : at + _LONGEST_HEAD - came]
                head_size = _head_size(self._head)
                if len(self._head) < head_size:
                    return
                yield self._begin(head_size, max(at - came, 0))
                at += head_size - came
            step = min(self._left, size - at)
            self._left -= step
            at += step
            if not self._left and not self._goes_on:
                self.unfinished = size - at
                if self._is_data:
                    self.whole.append(self._is_text)

    def _begin(self, head_size: int, start: int) -> FrameHead:
        first, second = self._head[0], self._head[1]
        length = second & ~_MASKED
        if length >= _TWO_BYTES:
            length = int.from_bytes(self._head[2 : 4 if length == _TWO_BYTES else 10])
        self._head = b""
        self._left = length
        opcode = first & 0x0F
        head = FrameHead(opcode, bool(first & _FIN), opcode >= _CONTROL, head_size, length, start)
        self._is_data = not head.is_control
        if self._is_data:
            self._goes_on = not head.is_last
            if head.opcode != CONTINUATION:
                self._is_text = head.opcode == TEXT
        return head


def _head_size(head: bytes) -> int:
    """Return the length of a header; 2 while its first two bytes have not arrived."""
    if len(head) < 2:
        return 2
    length = head[1] & ~_MASKED
    extended = 2 if length == _TWO_BYTES else 8 if length == _EIGHT_BYTES else 0
    return 2 + extended + (_KEY_BYTES if head[1] & _MASKED else 0)
