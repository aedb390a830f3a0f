"""Attention of all rows of a forward over pages, in one call of FlexAttention.

Queries of rows and heads that share a key form tiles of 16. A tile belongs to one context and attends only to
its pages, so prompts, seconds of sound and single tokens are treated alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from inference_service.device.compiling import compiled, compiles
from inference_service.device.paged import PAGE, Contexts
from inference_service.device.transfer import Array

TILE: Final = 16
"""Queries of a tile."""
OPTIONS: Final[Any] = {"BLOCK_M": TILE, "BLOCK_N": PAGE, "FORCE_USE_FLEX_ATTENTION": True}
"""Block sizes of the kernel: by default a block spans several pages of 16 rows, which are not contiguous.
FlexAttention's kernel for few queries is off, because it makes one tile of all of them.
"""


class Part(NamedTuple):
    """Rows of one context: its pages, rows of the first page before entry 0, first new entry, number of new
    rows.
    """

    pages: Sequence[int]
    offset: int
    start: int
    rows: int


@dataclass(frozen=True)
class Tiles:
    """The keys that the queries of a forward attend to."""

    table: Tensor
    """Pages of each context in order, int32 [contexts, width], then padding with a page of no context."""
    owners: Tensor
    """The context of each tile, int32 [tiles]."""
    counts: Tensor
    """The number of pages that each tile attends to, int32 [tiles]."""
    firsts: Tensor
    """The first entry that each query attends to, from the start of the first page, int32 [tiles * 16]."""
    lasts: Tensor
    """The last entry; -1 where there is no query."""
    queries: Tensor
    """The query at each place, int64 [tiles * 16]: row times heads of a key, plus the head."""
    places: Tensor
    """The place of each query, int64 [rows * heads of a key]."""
    numbers: Tensor
    """The index of each page of the cache in each context, int32 [contexts, pages]; -1 for other contexts'
    pages.
    """

    @classmethod
    def of(cls, arrays: Sequence[Tensor], pages: int) -> "Tiles":
        """Return the tiles of `tiled`'s arrays, on the device, over a cache of `pages` pages."""
        table, owners, counts, firsts, lasts, queries, places = arrays
        numbers = _numbers(table, pages)
        return cls(table, owners, counts, firsts, lasts, queries, places, numbers)

    @classmethod
    def of_last_rows(cls, table: Tensor, begins: Tensor, ends: Tensor, groups: int, pages: int) -> "Tiles":
        """Return tiles of the last row of each context, made on the device.

        `begins` and `ends` [contexts] count from the beginning of the first page; `groups` heads share a key.
        """
        count, height = len(table), tiles_of_row(groups)
        at = torch.arange(height * TILE, device=table.device)
        is_query = (at < groups).expand(count, -1)
        lasts = torch.where(is_query, ends[:, None] - 1, -1).to(torch.int32)
        rows = torch.arange(count, device=table.device)[:, None]
        counts = (ends + (PAGE - 1)) // PAGE
        seen = is_query.unflatten(1, (height, TILE)).any(2)
        return cls(
            table,
            rows.expand(-1, height).flatten().to(torch.int32),
            torch.where(seen, counts[:, None], 0).flatten().to(torch.int32),
            begins[:, None].expand(-1, height * TILE).flatten().to(torch.int32),
            lasts.flatten(),
            torch.where(is_query, rows * groups + at, 0).flatten(),
            (rows * (height * TILE) + at[:groups]).flatten(),
            _numbers(table, pages),
        )


def tiles_of_row(groups: int) -> int:
    """Return the number of tiles of a single row where `groups` heads share a key."""
    return -(-groups // TILE)


def tiled(
    parts: Sequence[Part], rows: int, contexts: int, width: int, groups: int, spare_page: int
) -> list[Array]:
    """Return arrays for `Tiles.of`, whose shapes depend only on `rows`, `contexts` and `width`.

    There may be fewer rows than `rows`, and fewer contexts. `spare_page` is a page of no context.
    """
    tiles = rows * tiles_of_row(groups)
    counts = np.array([part.rows for part in parts], np.int64)
    heights = -(-counts * groups // TILE)
    owner = np.repeat(np.arange(len(parts)), counts)
    row = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    begins = np.array([part.offset for part in parts], np.int64)
    starts = begins + np.array([part.start for part in parts], np.int64)
    first_tiles = np.cumsum(heights) - heights
    at = ((first_tiles[owner] * TILE + row * groups)[:, None] + np.arange(groups)).reshape(-1)

    table = np.full((contexts, width), spare_page, np.int32)
    for number, part in enumerate(parts):
        table[number, : len(part.pages)] = part.pages
    owners = np.zeros(tiles, np.int32)
    owners[: heights.sum()] = np.repeat(np.arange(len(parts)), heights)
    firsts, lasts = np.zeros(tiles * TILE, np.int32), np.full(tiles * TILE, -1, np.int32)
    firsts[at] = np.repeat(begins[owner], groups)
    lasts[at] = np.repeat(starts[owner] + row, groups)
    queries, places = np.zeros(tiles * TILE, np.int64), np.zeros(rows * groups, np.int64)
    queries[at], places[: len(at)] = np.arange(len(at)), at
    seen = (lasts.reshape(tiles, TILE).max(1) // PAGE + 1).astype(np.int32)
    return [table, owners, seen, firsts, lasts, queries, places]


def attend(
    queries: Tensor, keys: Tensor, values: Tensor, tiles: Tiles, scale: float | None, window: int | None
) -> Tensor:
    """Attend with queries [rows, heads, head size] to keys and values [kv heads, cache rows, head size] of a
    layer.

    A row attends to at most `window` entries, its own included. Returns [rows, heads, head size].
    """
    firsts = tiles.firsts if window is None else torch.maximum(tiles.firsts, tiles.lasts - (window - 1))
    call = _compiled() if compiles(keys.device) else _attend
    return call(
        queries, keys, values, tiles.table, tiles.owners, tiles.counts, firsts, tiles.lasts, tiles.queries,
        tiles.places, tiles.numbers, scale,
    )  # fmt: skip


def over_contexts(
    queries: Tensor, keys: Tensor, values: Tensor, contexts: Contexts, scale: float | None, window: int | None
) -> Tensor:
    """Attend with one row each of many contexts, see `paged.Attend`."""
    begins = torch.zeros_like(contexts.ends) if contexts.begins is None else contexts.begins
    groups, pages = queries.shape[1] // keys.shape[0], keys.shape[1] // PAGE
    tiles = Tiles.of_last_rows(contexts.table, begins, contexts.ends, groups, pages)
    return attend(queries, keys, values, tiles, scale, window)


def mask(tiles: Tiles, firsts: Tensor, rows: int) -> BlockMask:
    """Return the mask of cache rows that each query attends to."""
    return _mask(tiles.table, tiles.owners, tiles.counts, firsts, tiles.lasts, tiles.numbers, rows)


def _mask(
    table: Tensor, owners: Tensor, counts: Tensor, firsts: Tensor, lasts: Tensor, numbers: Tensor, rows: int
) -> BlockMask:
    def is_seen(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        number = numbers[owners[query // TILE], key // PAGE]
        entry = number * PAGE + key % PAGE
        return (number >= 0) & (entry >= firsts[query]) & (entry <= lasts[query])

    pages = table.index_select(0, owners)
    if table.device.type == "cpu":  # inductor's kernel there needs a table as wide as all pages
        pages = F.pad(pages, (0, max(0, rows // PAGE - pages.shape[1])))
    return BlockMask.from_kv_blocks(
        counts[None, None],
        pages[None, None],
        BLOCK_SIZE=(TILE, PAGE),
        mask_mod=is_seen,
        seq_lengths=(len(lasts), rows),
        compute_q_blocks=False,
    )


def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    table: Tensor,
    owners: Tensor,
    counts: Tensor,
    firsts: Tensor,
    lasts: Tensor,
    which: Tensor,
    places: Tensor,
    numbers: Tensor,
    scale: float | None,
) -> Tensor:
    (count, heads, head), kv = queries.shape, keys.shape[0]
    groups = heads // kv
    together = queries.reshape(1, count, kv, groups, head).transpose(1, 2)
    together = together.reshape(1, kv, count * groups, head)
    seen = flex_attention(
        together.index_select(2, which),
        keys[None],
        values[None],
        block_mask=_mask(table, owners, counts, firsts, lasts, numbers, keys.shape[1]),
        scale=scale,
        kernel_options=OPTIONS,
    )
    assert isinstance(seen, Tensor)
    own = seen[0].index_select(1, places).view(kv, count, groups, head)
    return own.transpose(0, 1).reshape(count, heads, head)


@cache
def _compiled() -> Callable[..., Tensor]:
    return compiled(_attend)


def _numbers(table: Tensor, pages: int) -> Tensor:
    order = torch.arange(table.shape[1], dtype=torch.int32, device=table.device).expand_as(table)
    none = torch.full((len(table), pages), -1, dtype=torch.int32, device=table.device)
    return none.scatter_(1, table.long(), order)
