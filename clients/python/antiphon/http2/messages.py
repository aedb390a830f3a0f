"""Messages of gRPC, put together from the parts of a body that come."""

from collections.abc import Callable
from typing import Final, TypeAlias

from antiphon.http2.grpc import PREFIX

Message: TypeAlias = bytearray | memoryview
"""One, serialised."""

_PREFIX_BYTES: Final = PREFIX.size

_AHEAD: Final = 2**17
"""Bytes for which room is made before they have come: a second of audio. A size is only claimed at first."""


class MessageTooLarge(Exception):
    """More bytes than are taken."""

    def __init__(self, size: int, most: int) -> None:
        super().__init__(f"A message has {size} bytes, at most {most} are taken.")


class MessageCompressed(Exception):
    """Which was not agreed on."""

    def __init__(self) -> None:
        super().__init__("Messages must not be compressed.")


class Messages:
    """Those of one direction of a call. What of one has come is kept until the rest is there."""

    __slots__ = ("_came", "_message", "_prefix", "_size", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        """Bytes of the largest one."""
        self._prefix = b""
        self._message: bytearray | None = None
        self._size = 0
        self._came = 0

    @property
    def is_between(self) -> bool:
        """Whether nothing has come of the next message."""
        return self._message is None and not self._prefix

    def read(self, data: memoryview, take: Callable[[Message], bool]) -> memoryview:
        """Reads the next part of the body; what of it comes after the last message that was wanted.

        `take` is given each message, valid until it returns, and says whether the next one is wanted. Raises
        `MessageTooLarge` and `MessageCompressed`, after which nothing more can be read.
        """
        while data:
            if self._message is not None:
                part = data[: self._size - self._came]
                came = self._came + len(part)
                self._message[self._came : came] = part  # which makes more room where it ends
                self._came = came
                data = data[len(part) :]
                if came < self._size:
                    break
                message, self._message = self._message, None
                goes_on = take(message)
            else:
                if self._prefix:
                    data = memoryview(self._prefix + data)
                    self._prefix = b""
                if len(data) < _PREFIX_BYTES:
                    self._prefix, data = bytes(data), data[:0]
                    break
                is_compressed, size = PREFIX.unpack_from(data)
                if is_compressed:
                    raise MessageCompressed
                if size > self.most:
                    raise MessageTooLarge(size, self.most)
                end = _PREFIX_BYTES + size
                if len(data) < end:
                    self._message, self._size, self._came = bytearray(min(size, _AHEAD)), size, 0
                    data = data[_PREFIX_BYTES:]
                    continue
                whole, data = data[_PREFIX_BYTES:end], data[end:]
                goes_on = take(whole)
            if not goes_on:
                break
        return data
