"""Blocks: what goes into one, and when it is free again."""

import pytest

from ws_adapter.process.blocks import UNIT as BLOCK
from ws_adapter.process.blocks import Block, Blocks

SMALLEST = BLOCK * 15 // 16


def stored(blocks: Blocks, *parts: bytes) -> Block:
    block = blocks.store(parts)
    assert isinstance(block, Block)
    return block


def test_block_copy_survives_source_change_and_contains_only_its_parts() -> None:
    blocks = Blocks(2 * BLOCK, BLOCK)
    data = bytearray(b"a" * BLOCK)
    kept = stored(blocks, bytes(data))
    data[:] = b"b" * BLOCK
    other = stored(blocks, b"head", b"", b"c" * SMALLEST, b"end")
    assert bytes(kept) == b"a" * BLOCK
    assert bytes(other) == b"head" + b"c" * SMALLEST + b"end"
    assert (len(kept), len(other), blocks.free) == (BLOCK, SMALLEST + 7, 0)


def test_block_is_free_again_once_and_holds_nothing_of_before() -> None:
    blocks = Blocks(BLOCK, BLOCK)
    kept = stored(blocks, b"secret" * 10_400)
    full = (b"x" * BLOCK,)
    assert blocks.store(full) is full
    again = kept
    del kept
    assert blocks.free == 0
    del again
    assert blocks.free == 1
    short = stored(blocks, b"x" * SMALLEST)
    assert blocks.free == 0
    assert bytes(short) == b"x" * SMALLEST


@pytest.mark.parametrize("size", [0, 1, SMALLEST - 1, BLOCK + 1])
def test_other_sizes_are_left_to_the_heap(size: int) -> None:
    blocks = Blocks(4 * BLOCK, BLOCK)
    parts = (bytes(size // 2), bytes(size - size // 2))
    assert blocks.store(parts) is parts
    assert blocks.free == 4


def test_less_memory_than_a_block_has_none() -> None:
    parts = (bytes(BLOCK),)
    assert Blocks(BLOCK - 1, BLOCK).store(parts) is parts
    assert Blocks(0, BLOCK).free == 0
