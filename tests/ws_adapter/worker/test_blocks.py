"""The blocks of the journals: what goes into one, and when it is free again."""

import pytest

from ws_adapter.worker.blocks import BLOCK, SMALLEST, Blocks


def test_copy_outlives_what_was_copied_and_nothing_else() -> None:
    blocks = Blocks(2 * BLOCK)
    data = bytearray(b"a" * BLOCK)
    kept = blocks.put(bytes(data))
    data[:] = b"b" * BLOCK
    other = blocks.put(b"c" * (SMALLEST + 1))
    assert kept is not None
    assert other is not None
    assert bytes(kept) == b"a" * BLOCK
    assert bytes(other) == b"c" * (SMALLEST + 1)
    assert (len(kept), len(other), blocks.free) == (BLOCK, SMALLEST + 1, 0)


def test_block_is_free_again_once_and_holds_nothing_of_before() -> None:
    blocks = Blocks(BLOCK)
    kept = blocks.put(b"secret" * 10_000)
    assert blocks.put(b"x" * BLOCK) is None
    again = kept
    del kept
    assert blocks.free == 0
    del again
    assert blocks.free == 1
    short = blocks.put(b"x" * (SMALLEST + 1))
    assert short is not None
    assert bytes(short) == b"x" * (SMALLEST + 1)


@pytest.mark.parametrize("size", [0, 1, SMALLEST, BLOCK + 1])
def test_other_sizes_are_left_to_the_heap(size: int) -> None:
    blocks = Blocks(4 * BLOCK)
    assert blocks.put(bytes(size)) is None
    assert blocks.free == 4


def test_less_memory_than_a_block_has_none() -> None:
    assert Blocks(BLOCK - 1).put(bytes(BLOCK)) is None
    assert Blocks(0).free == 0
