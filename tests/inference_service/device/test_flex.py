"""FlexAttention over pages: prompts and single rows in one call see their own contexts and nothing else.

Eagerly, where blocks of the mask are not used: another test holds these against the mask itself.
"""

import random
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.functional import scaled_dot_product_attention

from inference_service.device import compiling, flex
from inference_service.device.flex import OPTIONS, TILE, Part, Tiles, tiled
from inference_service.device.paged import Contexts
from inference_service.engine.batch.pages import PAGE
from tests.support.long import long, seeds

PAGES = 24


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a trace of each call, which takes longer than the call."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    monkeypatch.setattr(compiling, "_chosen", "on")
    yield
    torch._dynamo.reset()
    flex._compiled.cache_clear()


def parts(rng: random.Random) -> list[Part]:
    """Contexts whose pages lie anywhere and which begin and end within pages, with one new row or many."""
    free, made = rng.sample(range(PAGES - 1), PAGES - 1), list[Part]()
    for _ in range(rng.randint(1, 4)):
        pages = [free.pop() for _ in range(rng.randint(1, 5))]
        offset = rng.randrange(PAGE)
        length = rng.randint(1, len(pages) * PAGE - offset)
        length = max(length, (len(pages) - 1) * PAGE - offset + 1)
        count = rng.choice([1, 1, rng.randint(1, length)])
        made.append(Part(pages, offset, length - count, count))
    return made


def entries(part: Part) -> Tensor:
    """Rows of the cache that the entries of a context are."""
    cells = (torch.tensor(part.pages)[:, None] * PAGE + torch.arange(PAGE)).flatten()
    return cells[part.offset : part.offset + part.start + part.rows]


def attended(
    part: Part, queries: Tensor, keys: Tensor, values: Tensor, scale: float | None, window: int | None
) -> Tensor:
    """Return the attention [n, heads, head size] of a context's rows, computed row by row."""
    groups, own, seen = queries.shape[1] // keys.shape[0], entries(part), list[Tensor]()
    for row in range(part.rows):
        end = part.start + row + 1
        shown = own[max(0, end - window) if window else 0 : end]
        k, v = (slab[:, shown].repeat_interleave(groups, 0) for slab in (keys, values))
        seen.append(scaled_dot_product_attention(queries[row][:, None], k, v, scale=scale)[:, 0])
    return torch.stack(seen)


def try_out(rng: random.Random, *, tolerance: float = 2e-5, rows: int = 0) -> None:
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    kv, groups, head = rng.choice([1, 2]), rng.choice([1, 3, 4, 20]), rng.choice([16, 32])
    given = parts(rng)
    count = sum(part.rows for part in given)
    size = rows or count + rng.randint(0, 5)
    keys, values = (torch.full((kv, PAGES * PAGE, head), 1e4) for _ in range(2))
    for part in given:
        own = entries(part)
        for slab in (keys, values):
            slab[:, own] = torch.randn(kv, len(own), head, generator=generator)
    queries = torch.randn(size, kv * groups, head, generator=generator)
    scale, window = rng.choice([None, 0.7]), rng.choice([None, rng.randint(1, 40)])
    arrays = tiled(given, size, len(given) + rng.randint(0, 2), 6, groups, PAGES - 1)
    tiles = Tiles.of([torch.from_numpy(it) for it in arrays], PAGES)

    seen = flex.attend(queries, keys, values, tiles, scale, window)

    wanted, at = [], 0
    for part in given:
        own = queries[at : at + part.rows]
        wanted.append(attended(part, own, keys, values, scale, window))
        at += part.rows
    torch.testing.assert_close(seen[:count], torch.cat(wanted), atol=tolerance, rtol=tolerance)
    assert seen.isfinite().all()


@pytest.mark.parametrize("seed", seeds(0, *range(1, 8)))
def test_rows_of_prompts_and_single_rows_see_their_own_contexts(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(12):
        try_out(rng)


@pytest.mark.parametrize("seed", seeds(0, 1, 2))
@pytest.mark.parametrize("groups", [1, 4, 20])
def test_blocks_of_the_mask_hold_all_that_is_seen_and_pages_of_one_context(seed: int, groups: int) -> None:
    """Compiled kernels read these blocks alone."""
    rng = random.Random(seed)
    given = parts(rng)
    count = sum(part.rows for part in given)
    arrays = [torch.from_numpy(it) for it in tiled(given, count + 3, 5, 6, groups, PAGES - 1)]
    tiles = Tiles.of(arrays, PAGES)
    mask = flex.mask(tiles, tiles.firsts, PAGES * PAGE)
    queries, keys = torch.arange(len(tiles.lasts)), torch.arange(PAGES * PAGE)

    seen = mask.mask_mod(torch.tensor(0), torch.tensor(0), queries[:, None], keys[None])

    by_block = seen.unflatten(0, (-1, TILE)).unflatten(2, (-1, PAGE)).any(3).any(1)
    blocks = torch.zeros_like(by_block)
    for tile, number in enumerate(mask.kv_num_blocks[0, 0].tolist()):
        pages = mask.kv_indices[0, 0, tile, :number].tolist()
        assert not pages or any(set(pages) <= set(part.pages) for part in given)
        blocks[tile, pages] = True
    assert not (by_block & ~blocks).any()
    assert int(seen.sum()) == groups * sum(part.start + row + 1 for part in given for row in range(part.rows))


def test_single_rows_are_put_into_tiles_on_the_device_as_on_the_host() -> None:
    table = torch.tensor([[3, 1, 9], [4, 9, 9]], dtype=torch.int32)
    begins, ends = torch.tensor([[5, 0], [37, 9]], dtype=torch.int32)
    given = [Part([3, 1, 9], 5, 31, 1), Part([4], 0, 8, 1)]
    for groups in (1, 4, 20):
        wanted = Tiles.of([torch.from_numpy(it) for it in tiled(given, 2, 2, 3, groups, 9)], 10)
        found = Tiles.of_last_rows(table, begins, ends, groups, 10)
        is_query = wanted.lasts >= 0
        for name in ("table", "owners", "counts", "lasts", "queries", "places"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)), name
            assert getattr(found, name).dtype is getattr(wanted, name).dtype, name
        assert torch.equal(found.firsts[is_query], wanted.firsts[is_query])


def test_blocks_of_the_kernel_fit_pages_of_16_rows() -> None:
    """A block of 64 rows has failed on a card: pages of a context do not lie side by side."""
    assert PAGE % OPTIONS["BLOCK_N"] == 0
    assert TILE % OPTIONS["BLOCK_M"] == 0
    assert OPTIONS["FORCE_USE_FLEX_ATTENTION"], "the kernel for few queries knows one tile"


def test_contexts_of_single_rows_may_begin_within_a_page() -> None:
    generator = torch.Generator().manual_seed(0)
    queries = torch.randn(2, 4, 16, generator=generator)
    keys, values = torch.randn(2, 2, 4 * PAGE, 16, generator=generator)
    table = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32)
    ends, begins = torch.tensor([[PAGE + 3, 5], [7, 2]], dtype=torch.int32)
    seen = flex.over_contexts(queries, keys, values, Contexts(table, ends, begins), None, None)
    for row, part in enumerate([Part([2, 0], 7, PAGE - 5, 1), Part([1], 2, 2, 1)]):
        wanted = attended(part, queries[row : row + 1], keys, values, None, None)
        torch.testing.assert_close(seen[row : row + 1], wanted, atol=2e-5, rtol=2e-5)


@long
@pytest.mark.usefixtures("compiled")
def test_compiled_attention_is_the_eager_one() -> None:
    rng = random.Random(0)
    for _ in range(3):
        try_out(rng, rows=64)
