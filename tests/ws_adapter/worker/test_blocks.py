"""The blocks of the journals: what goes into one, and when it is free again."""

import pytest

from ws_adapter.worker.blocks import BLOCK, SMALLEST, Blocks


def test_copy_outlives_what_was_copied_and_nothing_else() -> None:
    blocks = Blocks(2 * BLOCK)
    data = bytearray(b"a" * BLOCK)
    kept = blocks.store(bytes(data))
    data[:] = b"b" * BLOCK
    other = blocks.store(b"c" * SMALLEST)
    assert bytes(kept) == b"a" * BLOCK
    assert bytes(other) == b"c" * SMALLEST
    assert (len(kept), len(other), blocks.free) == (BLOCK, SMALLEST, 0)


def test_block_is_free_again_once_and_holds_nothing_of_before() -> None:
    blocks = Blocks(BLOCK)
    kept = blocks.store(b"secret" * 10_400)
    full = b"x" * BLOCK
    assert blocks.store(full) is full
    again = kept
    del kept
    assert blocks.free == 0
    del again
    assert blocks.free == 1
    short = blocks.store(b"x" * SMALLEST)
    assert blocks.free == 0
    assert bytes(short) == b"x" * SMALLEST


@pytest.mark.parametrize("size", [0, 1, SMALLEST - 1, BLOCK + 1])
def test_other_sizes_are_left_to_the_heap(size: int) -> None:
    blocks = Blocks(4 * BLOCK)
    data = bytes(size)
    assert blocks.store(data) is data
    assert blocks.free == 4


def test_less_memory_than_a_block_has_none() -> None:
    data = bytes(BLOCK)
    assert Blocks(BLOCK - 1).store(data) is data
    assert Blocks(0).free == 0
