"""Attention over packed rows: each session's queries see its own part of the KV cache and nothing else."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from inference_service.engine.batch.kvcache import KVCache

NAME = "antiphon_packed"
_UNKNOWN = ("softcap", "s_aux")
"""What changes the scores in the layers of some models."""


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


@dataclass(frozen=True)
class Sight:
    """What the rows of one span see."""

    keys: tuple[Tensor, ...]
    """Of each layer, [1, kv heads, n, head size]: views of the cache, as are the values."""
    values: tuple[Tensor, ...]
    mask: Tensor | None
    """[groups * count, n], added to the scores; a single row sees everything."""


class PackedLayout:
    """Where the rows of one packed forward are in the cache, and what they see: the same in all layers.

    What is worked out here is worked out once a forward, not once a layer.
    """

    def __init__(self, cache: KVCache, spans: list[Span], groups: int) -> None:
        """`groups` is how many query heads share a key."""
        self.cache = cache
        self.counts = [span.count for span in spans]
        self.rows = torch.tensor(
            [cache.row(s.slot, i) for s in spans for i in range(s.start, s.end)], device=cache.device
        )
        self._spans = spans
        self._groups = groups
        self._sights: dict[int | None, list[Sight]] = {}
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}

    def sights(self, window: int | None) -> list[Sight]:
        """What each span sees in a layer whose rows see `window` keys at most, their own included."""
        if window not in self._sights:
            self._sights[window] = [self._sight(span, window) for span in self._spans]
        return self._sights[window]

    def _sight(self, span: Span, window: int | None) -> Sight:
        first = 0 if window is None else max(0, span.start + 1 - window)
        keys, values = self.cache.held(span.slot, first, span.end)
        mask = None if span.count == 1 else self._mask(span.count, span.end - first, window)
        return Sight(keys.unsqueeze(1).unbind(0), values.unsqueeze(1).unbind(0), mask)

    def _mask(self, count: int, seen: int, window: int | None) -> Tensor:
        """Of `count` rows, the last of `seen` keys: each sees itself and, in its window, what came before."""
        known = self._masks.get((count, seen, window))
        if known is None:
            keys = self.cache.keys
            hidden = torch.full((count, seen), -torch.inf, dtype=keys.dtype, device=keys.device)
            mask = hidden.triu(seen - count + 1)
            if window is not None:
                mask += hidden.tril(seen - count - window)
            known = self._masks[count, seen, window] = mask.repeat(self._groups, 1)
        return known


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    packed: PackedLayout | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Writes keys and values [1, kv heads, rows, head] into the cache and attends per session.

    `query` is [1, heads, rows, head]; the result is [1, rows, heads, head], as transformers expects. A row of
    a layer with a `sliding_window` sees that many keys at most, its own included.

    Raises `NotImplementedError` for attention with something of its own.
    """
    assert packed is not None
    for name in _UNKNOWN:
        if others.get(name) is not None:
            raise NotImplementedError(f"packed attention has no {name}")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    packed.cache.keys[layer].index_copy_(1, packed.rows, key[0])
    packed.cache.values[layer].index_copy_(1, packed.rows, value[0])
    _, heads, rows, head = query.shape
    kv = key.shape[1]
    # The heads that share a key become rows of one small attention.
    shared = query[0].transpose(0, 1).reshape(rows, kv, heads // kv, head)
    sights = packed.sights(sliding_window)
    outputs = [
        _attend(queries, sight, layer, scaling)
        for queries, sight in zip(shared.split(packed.counts), sights, strict=True)
    ]
    return torch.cat(outputs).reshape(1, rows, heads, head), None


def _attend(queries: Tensor, sight: Sight, layer: int, scaling: float | None) -> Tensor:
    """The rows of one span, [count, kv heads, groups, head]."""
    keys, values = sight.keys[layer], sight.values[layer]
    count, kv, groups, head = queries.shape
    if count == 1:
        return F.scaled_dot_product_attention(queries, keys, values, scale=scaling)
    rows = queries.permute(1, 2, 0, 3).reshape(1, kv, groups * count, head)
    seen = F.scaled_dot_product_attention(rows, keys, values, attn_mask=sight.mask, scale=scaling)
    return seen[0].view(kv, groups, count, head).permute(2, 0, 1, 3)


AttentionInterface.register(NAME, packed_attention)
