"""Parts of saved states: times, and immutable data, stored once by a journal and referred to by number."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from ws_adapter.protocol.wire.codec import Samples

Data: TypeAlias = bytes | Samples
"""Bytes, or float32 samples that are never changed."""

LEAST_PIECE: Final = 2**15
"""A piece of a `ByteQueue` with at least this many bytes no longer grows."""

Saved: TypeAlias = Mapping[int, bytes]
"""The data that a saved state refers to."""


def ago(at: float | None, now: float) -> float | None:
    """Return how long before `now` a time is, in seconds."""
    return None if at is None else now - at


class Blobs:
    """Numbers for pieces of data, each kept for as long as successive states refer to it."""

    def __init__(self) -> None:
        self.kept: dict[int, Data] = {}
        """Data that the newest state refers to, by number."""
        self._numbers: dict[int, int] = {}
        """Numbers by identity, which is unique while `kept` holds the data."""
        self._before: dict[int, Data] = {}
        self._numbers_before: dict[int, int] = {}
        self._last = 0

    def begin(self) -> None:
        """Begin a state."""
        self._before, self.kept = self.kept, {}
        self._numbers_before, self._numbers = self._numbers, {}

    def keep(self, data: Data) -> int:
        """Return the number of data in the state."""
        key = id(data)
        number = self._numbers.get(key) or self._numbers_before.get(key)
        if number is None:
            self._last += 1
            number = self._last
        self.kept[number], self._numbers[key] = data, number
        return number

    def keep_all(self, pieces: Iterable[Data]) -> tuple[int, ...]:
        """Return the numbers of several pieces, in their order."""
        return tuple(map(self.keep, pieces))

    @property
    def size(self) -> int:
        """Bytes of the data that the newest state refers to."""
        return sum(len(data) if isinstance(data, bytes) else data.nbytes for data in self.kept.values())


class SavedBytes(Struct, frozen=True):
    """The state of a `ByteQueue`: the numbers of its pieces, and the offset in the first one."""

    pieces: tuple[int, ...]
    begin: int


class ByteQueue:
    """A queue of bytes. Its pieces are immutable, so that a journal stores each of them once."""

    def __init__(self, data: bytes = b"") -> None:
        self._pieces: deque[bytes] = deque([data] if data else [])
        self._begin = 0
        """The number of bytes of the first piece that were taken."""
        self._size = len(data)

    def __len__(self) -> int:
        return self._size

    def put(self, data: bytes) -> None:
        """Append bytes; a short piece grows."""
        if not data:
            return
        self._size += len(data)
        if self._pieces and len(self._pieces[-1]) < LEAST_PIECE:
            data = self._pieces.pop() + data
        self._pieces.append(data)

    def take(self, size: int) -> bytes:
        """Remove and return at most so many of the oldest bytes."""
        pieces, left = [], min(size, self._size)
        self._size -= left
        while left:
            piece = self._pieces[0][self._begin : self._begin + left]
            pieces.append(piece)
            left -= len(piece)
            self._begin += len(piece)
            if self._begin == len(self._pieces[0]):
                self._pieces.popleft()
                self._begin = 0
        return b"".join(pieces)

    @property
    def all(self) -> bytes:
        """All bytes, which stay in the queue."""
        return b"".join(self._pieces)[self._begin :]

    def extend(self, other: "ByteQueue") -> None:
        """Append all bytes of another queue, which must not be used any more."""
        for piece in (other.take(len(other._pieces[0]) - other._begin) for _ in range(len(other._pieces))):
            self.put(piece)

    def clear(self) -> None:
        """Remove all bytes."""
        self._pieces.clear()
        self._begin = self._size = 0

    def save(self, blobs: Blobs) -> SavedBytes:
        """Return the state."""
        return SavedBytes(blobs.keep_all(self._pieces), self._begin)

    @classmethod
    def restored(cls, saved: SavedBytes, blobs: Saved) -> "ByteQueue":
        """Return a queue from a saved state. Raises `ValueError` or `KeyError`."""
        made = cls()
        made._pieces = deque(blobs[number] for number in saved.pieces)
        made._begin = saved.begin
        made._size = sum(map(len, made._pieces)) - saved.begin
        if not 0 <= saved.begin <= (len(made._pieces[0]) if made._pieces else 0):
            raise ValueError("the offset of the saved bytes is beyond their first piece")
        return made


def bytes_of(data: Data) -> bytes:
    """Return data as bytes."""
    return data if isinstance(data, bytes) else data.tobytes()


def samples_of(saved: Saved, numbers: Iterable[int]) -> list[Samples]:
    """Return saved samples. Raises `KeyError` or `ValueError` if they are missing or incomplete."""
    return [np.frombuffer(saved[number], np.float32) for number in numbers]
