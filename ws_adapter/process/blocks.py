"""Memory for sound that is kept for seconds, apart from the heap.

A journal keeps the input of a unit for up to a minute, and a replay buffer keeps the last events that were
sent to a client. On the heap such pieces cause fragmentation: short-lived buffers no longer find a free piece
of their size. With 750 sessions this took a quarter of the adapter's CPU time. Here each piece is copied into
a block of one region. The region has no huge pages, because the first use of a huge page pauses all sessions
for 4 ms on a virtual machine.
"""

import mmap
import sys
from typing import Final, TypeAlias

from msgspec import Struct

UNIT: Final = 2**16
"""Bytes of a block for the input of a unit: a second of float32 sound at 16 kHz with some overhead."""

ANSWER: Final = 2**17
"""Bytes of a block for the answer to a unit: a second of float32 sound at 24 kHz in base64."""

_NORESERVE: Final = 0x4000
"""MAP_NORESERVE of Linux's mmap(2) on x86, ARM and RISC-V: a region may exceed the free memory. Python
names it from 3.13 on."""


class Blocks:
    """A region of blocks. The system provides its memory at first use; the region never returns it."""

    def __init__(self, size: int, block: int) -> None:
        """Map a region of as many blocks of `block` bytes as fit into `size` bytes."""
        self._block = block
        self._smallest = block * 15 // 16
        """The smallest piece that gets a block, since callers count only the bytes of their pieces."""
        self._left = size // block
        """The number of blocks that were never used."""
        self._free: list[memoryview] = []
        """Returned blocks, reused last in, first out, so that few blocks need memory."""
        self._region = _map(self._left * block)

    @property
    def free(self) -> int:
        """The number of free blocks."""
        return self._left + len(self._free)

    def store(self, parts: tuple[bytes, ...]) -> "Stored":
        """Return a copy of `parts` in one block; `parts` themselves if no block is free, or if they exceed a
        block or do not fill 15/16 of it."""
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
    """Return writable memory, which the system provides at the first write."""
    if not size:
        return memoryview(b"")
    if sys.platform != "linux":
        return memoryview(mmap.mmap(-1, size))
    return memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE))


class Block(Struct, eq=False, gc=False):
    """A copy of bytes in a block. The block is free again when the last reference to the copy is gone.

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
