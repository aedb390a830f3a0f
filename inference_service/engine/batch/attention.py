"""Attention over packed rows: each session's queries attend only to its own part of the KV cache."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from inference_service.device import flex
from inference_service.device.paged import AttentionBackend, Contexts
from inference_service.engine.batch.kvcache import KVCache

NAME = "antiphon_packed"
_UNSUPPORTED = ("softcap", "s_aux")
"""Arguments that change the scores in the layers of some models."""


@dataclass(frozen=True)
class Span:
    """`count` consecutive rows of a packed batch that belong to one slot and start at cache index `start`."""

    slot: int
    start: int
    count: int

    @property
    def end(self) -> int:
        """Length of the slot's cache once these rows are in it."""
        return self.start + self.count


class PackedLayout:
    """The cache rows that a packed forward writes and attends to; the same in all layers.

    It is computed once per forward, not once per layer.
    """

    def __init__(self, cache: KVCache, spans: list[Span], groups: int) -> None:
        """Lay out the rows; `groups` is the number of query heads that share a key head."""
        self.cache = cache
        self.counts = [span.count for span in spans]
        self.rows: Tensor
        """Rows of the cache that the packed rows are written to, on the device."""
        self._spans = spans
        self._groups = groups
        self._attended: dict[int | None, list[AttendedRuns]] = {}
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}

    def attend(self, queries: Tensor, layer: int, scaling: float | None, window: int | None) -> Tensor:
        """Return the attention output of the packed rows, [rows, heads, head], for queries of the
        same shape.
        """
        rows, heads, head = queries.shape
        kv = heads // self._groups
        # The heads that share a key become rows of one small attention.
        own = queries.reshape(rows, kv, self._groups, head).split(self.counts)
        if window not in self._attended:
            self._attended[window] = [self._runs(span, window) for span in self._spans]
        seen = [
            _attend(mine, *runs.of(layer), runs.mask, scaling)
            for mine, runs in zip(own, self._attended[window], strict=True)
        ]
        return torch.cat(seen).view(rows, heads, head)

    def _runs(self, span: Span, window: int | None) -> "AttendedRuns":
        first = 0 if window is None else max(0, span.start + 1 - window)
        runs = self.cache.runs(span.slot, first, span.end)
        views = [self.cache.rows(*run) for run in runs]
        keys, values = ([slab.unsqueeze(1).unbind(0) for slab in slabs] for slabs in zip(*views, strict=True))
        mask = None if span.count == 1 else self._mask(span.count, sum(n for _, n in runs), window)
        return AttendedRuns(keys, values, mask)

    def _mask(self, count: int, seen: int, window: int | None) -> Tensor:
        """Return the mask of the last `count` rows: each attends to itself and to the earlier rows in its
        window.
        """
        known = self._masks.get((count, seen, window))
        if known is None:
            keys = self.cache.keys
            hidden = torch.full((count, seen), -torch.inf, dtype=keys.dtype, device=keys.device)
            mask = hidden.triu(seen - count + 1)
            if window is not None:
                mask += hidden.tril(seen - count - window)
            known = self._masks[count, seen, window] = mask.repeat(self._groups, 1)
        return known


@dataclass(frozen=True)
class AttendedRuns:
    """The entries that the rows of one span attend to, run by run."""

    keys: list[Sequence[Tensor]]
    """Keys of each run and layer: views of the cache, [1, kv heads, n, head size]. The values have the same
    shape.
    """
    values: list[Sequence[Tensor]]
    mask: Tensor | None
    """[groups * count, n], added to the scores; without a mask the rows attend to all entries."""

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values of a layer in one piece: copies if there are several runs."""
        if len(self.keys) == 1:
            return self.keys[0][layer], self.values[0][layer]
        keys, values = ([run[layer] for run in views] for views in (self.keys, self.values))
        return torch.cat(keys, dim=2), torch.cat(values, dim=2)


@dataclass
class StepLayout:
    """One row from each of many contexts, all in one attention call."""

    cache: KVCache
    rows: Tensor
    """Rows of the cache that the packed rows are written to."""
    contexts: Contexts
    backend: AttentionBackend

    def attend(self, queries: Tensor, layer: int, scaling: float | None, window: int | None) -> Tensor:
        """Attend as `PackedLayout` does."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        return self.backend(queries, keys, values, self.contexts, scaling, window)


@dataclass
class MixedLayout:
    """Rows of prompts and single rows in one forward, each attended by the layout of its kind."""

    cache: KVCache
    rows: Tensor
    parts: list[tuple[Tensor, "PackedLayout | StepLayout"]]
    """The indices of each part's rows, and its layout."""

    def attend(self, queries: Tensor, layer: int, scaling: float | None, window: int | None) -> Tensor:
        """Attend as `PackedLayout` does."""
        seen = torch.empty_like(queries)
        for at, part in self.parts:
            seen.index_copy_(0, at, part.attend(queries.index_select(0, at), layer, scaling, window))
        return seen


@dataclass
class TileLayout:
    """Rows of all kinds, whose contexts are read in tiles, all in one attention call."""

    cache: KVCache
    rows: Tensor
    """Rows of the cache that the packed rows are written to."""
    tiles: flex.Tiles

    def attend(self, queries: Tensor, layer: int, scaling: float | None, window: int | None) -> Tensor:
        """Attend as `PackedLayout` does."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        return flex.attend(queries, keys, values, self.tiles, scaling, window)


Layout = PackedLayout | StepLayout | MixedLayout | TileLayout


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: Layout | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Write keys and values [1, kv heads, rows, head] into the cache, and attend per session.

    `query` is [1, heads, rows, head]; the result is [1, rows, heads, head], as transformers expects. In a
    layer with a `sliding_window`, a row attends to at most that many keys, its own included.

    Raises `NotImplementedError` for attention with unsupported arguments.
    """
    assert packed is not None
    for name in _UNSUPPORTED:
        if others.get(name) is not None:
            raise NotImplementedError(f"packed attention does not support {name}")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    packed.cache.keys[layer].index_copy_(1, packed.rows, key[0])
    packed.cache.values[layer].index_copy_(1, packed.rows, value[0])
    return packed.attend(query[0].transpose(0, 1), layer, scaling, sliding_window)[None], None


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float | None
) -> Tensor:
    """Return the attention output of the rows of one span, [count, kv heads, groups, head]."""
    count, kv, groups, head = queries.shape
    if count == 1:
        return F.scaled_dot_product_attention(queries, keys, values, scale=scaling)
    rows = queries.permute(1, 2, 0, 3).reshape(1, kv, groups * count, head)
    seen = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scaling)
    return seen[0].view(kv, groups, count, head).permute(2, 0, 1, 3)


AttentionInterface.register(NAME, packed_attention)
