"""Memory for sound that is kept for seconds, apart from the heap.

A journal keeps the input of a unit for up to a minute, and a replay buffer keeps the last events that a
client was sent. On the heap such pieces cause fragmentation: short-lived buffers no longer find a free piece
of their size. With 750 sessions a quarter of the adapter's processor time went into that. Here each piece is
copied into a block of one region. The region is not mapped in huge pages: the first use of one takes 4 ms on
a virtual machine, for which all sessions wait.
"""

import mmap
import sys
from typing import Final, TypeAlias

from msgspec import Struct

UNIT: Final = 2**16
"""Bytes of a block for the input of a unit: a second of float32 sound at 16 kHz, and little more."""

ANSWER: Final = 2**17
"""Bytes of a block for the answer to a unit: a second of float32 sound at 24 kHz in base64."""

_NORESERVE: Final = 0x4000
"""MAP_NORESERVE of Linux's mmap(2) on x86, ARM and RISC-V: a region may exceed the free memory. Python
names it from 3.13 on."""


class Blocks:
    """A region of blocks. The system gives it memory as it is used, and it keeps that memory."""

    def __init__(self, size: int, block: int) -> None:
        """Map as many blocks of `block` bytes as `size` bytes hold."""
        self._block = block
        self._smallest = block * 15 // 16
        """The smallest piece that gets a block: memory is counted by the bytes of the kept pieces."""
        self._left = size // block
        """The number of blocks that were never taken."""
        self._free: list[memoryview] = []
        """Blocks that were given back, reused last in, first out, since few are in use at a time."""
        self._region = _map(self._left * block)

    @property
    def free(self) -> int:
        """Number of blocks that are not taken."""
        return self._left + len(self._free)

    def store(self, parts: tuple[bytes, ...]) -> "Stored":
        """Return a copy of `parts` in one block; `parts` themselves if they do not fit one well, or none
        is free."""
        size = sum(map(len, parts))
        if not self._smallest <= size <= self._block or not (self._free or self._left):
            return parts
        if not self._free:
            self._left -= 1
            self._free.append(self._region[self._left * self._block :][: self._block])
        memory = self._free.pop()
        at = 0
        for part in parts:
            end = at + len(part)
            memory[at:end] = part
            at = end
        return Block(self._free, memory, size)


def _map(size: int) -> memoryview:
    """Return writable memory, which the system provides as it is written."""
    if not size:
        return memoryview(b"")
    if sys.platform != "linux":
        return memoryview(mmap.mmap(-1, size))
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE))


class Block(Struct, eq=False, gc=False):
    """A copy of bytes in a block, which is free again when nobody refers to the copy.

    It cannot be part of a reference cycle, so the garbage collector skips it.
    """

    free: list[memoryview]
    memory: memoryview
    size: int

    def __del__(self) -> None:
        self.free.append(self.memory)

    def __len__(self) -> int:
        """Return the number of bytes."""
        return self.size

    def __bytes__(self) -> bytes:
        """Return the bytes."""
        return bytes(self.memory[: self.size])


Stored: TypeAlias = tuple[bytes, ...] | Block
"""The result of `Blocks.store`."""


def size_of(stored: Stored) -> int:
    """Return how many bytes were stored."""
    return len(stored) if isinstance(stored, Block) else sum(map(len, stored))


def parts_of(stored: Stored) -> tuple[bytes, ...]:
    """Return the stored bytes, as one part if they were copied."""
    return (bytes(stored),) if isinstance(stored, Block) else stored
