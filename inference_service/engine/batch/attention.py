"""Attention over packed rows: each session's queries see its own part of the KV cache and nothing else."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface

from inference_service.engine.batch.kvcache import KVCache, Run
from inference_service.engine.batch.memory import CROWD_BYTES
from inference_service.engine.batch.pages import PAGE
from inference_service.engine.device.paged import Contexts, Way

NAME = "antiphon_packed"
_UNKNOWN = ("softcap", "s_aux")
"""What changes the scores in the layers of some models."""
MOST_RUNS = 4
"""A context in more runs than this is gathered before it is seen, which costs less than so many calls."""
GATHERED_BYTES = 2**20
"""So many keys of one context and layer are gathered at no cost: they must come from memory anyway."""
CROWD = 4
"""Decoding rows of so many short contexts are looked at together."""
_FILLED = 4
"""At most one page in so many of them is there to make a context as long as the longest."""


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
    """Keys that are seen in one go, by the rows of one span or of all spans that share them."""

    spans: list[int]
    keys: list[Sequence[Tensor]]
    """Of each run, of each layer: views of the cache, [1, kv heads, n, head size], as are the values."""
    values: list[Sequence[Tensor]]
    mask: Tensor | None
    """[groups * count, n], added to the scores; without one all is seen."""

    def of(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values in one piece: copies if there are several runs."""
        if len(self.keys) == 1:
            return self.keys[0][layer], self.values[0][layer]
        keys, values = ([run[layer] for run in views] for views in (self.keys, self.values))
        return torch.cat(keys, dim=2), torch.cat(values, dim=2)


@dataclass(frozen=True)
class Crowd:
    """Decoding rows of several sessions, whose contexts are gathered to be looked at in one go.

    Contexts are made equally long by pages that are not theirs, which nobody sees.
    """

    rows: Tensor
    """Which of the packed rows, [n]; the first once more where there are kernels for some numbers only."""
    count: int
    """How many without those."""
    pages: Tensor
    """Of each context in turn, [n * pages]."""
    hidden: Tensor
    """Which entries of each context are not its own, [n, 1, entries]."""
    others: Tensor
    """The same as indices of all entries."""

    def of(self, cache: KVCache, slab: Tensor) -> Tensor:
        """Keys or values of a layer, [kv heads * n, entries, head size]. The next call writes over them."""
        kv, _, head = slab.shape
        block = cache.block[: kv * len(self.pages) * PAGE * head].view(kv, len(self.pages), PAGE * head)
        torch.index_select(slab.view(kv, -1, PAGE * head), 1, self.pages, out=block)
        return block.view(kv * len(self.rows), -1, head)

    def attend(self, cache: KVCache, layer: int, queries: Tensor, scaling: float | None) -> Tensor:
        """What they see, [count, kv heads, groups, head], of queries of all packed rows."""
        mine = queries.index_select(0, self.rows)
        n, kv, groups, head = mine.shape
        mine = mine.float() * (head**-0.5 if scaling is None else scaling)
        keys = self.of(cache, cache.keys[layer])
        if cache.floats is not cache.block:
            keys = cache.floats[: keys.numel()].view(keys.shape).copy_(keys)
        scores = torch.bmm(mine.transpose(0, 1).reshape(kv * n, groups, head), keys.transpose(1, 2))
        scores.view(kv, n, groups, -1).masked_fill_(self.hidden, -torch.inf)
        values = self.of(cache, cache.values[layer])
        values.view(kv, -1, head).index_fill_(1, self.others, 0)  # even 0 of what is no number would be felt
        seen = torch.bmm(scores.softmax(-1).to(values.dtype), values)
        return seen.view(kv, n, groups, head).transpose(0, 1)[: self.count]


class PackedLayout:
    """Where the rows of one packed forward are in the cache, and what they see: the same in all layers.

    What is worked out here is worked out once a forward, not once a layer. A long context of several runs is
    seen run by run if `in_parts`, and a run that several spans share by all at once; else it is gathered.
    """

    def __init__(self, cache: KVCache, spans: list[Span], groups: int, *, in_parts: bool) -> None:
        """`groups` is how many query heads share a key."""
        self.cache = cache
        self.counts = [span.count for span in spans]
        self.rows: Tensor
        """Rows of the cache that the packed rows are written to, on the device."""
        self._spans = spans
        self._groups = groups
        self._in_parts = in_parts
        self._begins = [0, *accumulate(self.counts)]
        self._views: dict[int | None, tuple[list[Sight], list[Crowd]]] = {}
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}

    def views(self, window: int | None) -> tuple[list[Sight], list[Crowd]]:
        """What is seen in a layer whose rows see `window` keys at most, their own included."""
        if window not in self._views:
            self._views[window] = self._make(window)
        return self._views[window]

    def attend(self, queries: Tensor, layer: int, scaling: float | None, window: int | None) -> Tensor:
        """What the packed rows see, [rows, heads, head], by their queries of the same shape."""
        rows, heads, head = queries.shape
        kv = heads // self._groups
        # The heads that share a key become rows of one small attention.
        queries = queries.reshape(rows, kv, self._groups, head)
        sights, crowds = self.views(window)
        own = queries.split(self.counts)
        if not crowds:
            outputs = _attend_each(own, sights, layer, scaling)
            return torch.cat([rows_of for _, rows_of in sorted(outputs.items())]).view(rows, heads, head)
        seen = torch.empty_like(queries)
        for crowd in crowds:
            seen.index_copy_(0, crowd.rows[: crowd.count], crowd.attend(self.cache, layer, queries, scaling))
        if sights:
            places = seen.split(self.counts)
            for i, rows_of in _attend_each(own, sights, layer, scaling).items():
                places[i].copy_(rows_of)
        return seen.view(rows, heads, head)

    def _make(self, window: int | None) -> tuple[list[Sight], list[Crowd]]:
        crowds = self._crowds(window)
        sights: list[Sight] = []
        shared: defaultdict[Run, list[int]] = defaultdict(list)
        for i, span in enumerate(self._spans):
            if any(i in members for members in crowds):
                continue
            first = 0 if window is None else max(0, span.start + 1 - window)
            runs = self.cache.runs(span.slot, first, span.end)
            apart = self._apart(runs, span.count, window)
            for run in runs[:apart]:
                shared[run].append(i)
            mask = None if span.count == 1 else self._mask(span.count, runs[apart:], window)
            sights.append(self._sight([i], runs[apart:], mask))
        sights += [self._sight(seen, [run], None) for run, seen in shared.items()]
        return sights, [self._crowd(members) for members in crowds]

    def _crowds(self, window: int | None) -> list[list[int]]:
        """Spans of one row that are looked at together, in groups of about the same length."""
        if self.cache.device.type != "cpu":
            return []
        page_bytes = PAGE * self.cache.row_bytes
        short = [
            (len(self.cache.pages(span.slot, span.end)[0]), i)
            for i, span in enumerate(self._spans)
            if span.count == 1 and (window is None or span.end <= window)
        ]
        short = sorted((it for it in short if it[0] * page_bytes <= GATHERED_BYTES), reverse=True)
        groups: list[list[int]] = []
        longest = 0
        for pages, i in short:
            fits = groups and pages * _FILLED >= longest * (_FILLED - 1)
            if fits and math.prod(self._crowd_size(len(groups[-1]) + 1, longest)) * page_bytes <= CROWD_BYTES:
                groups[-1].append(i)
            else:
                groups.append([i])
                longest = pages
        return [sorted(group) for group in groups if len(group) >= CROWD]

    def _crowd_size(self, contexts: int, pages: int) -> tuple[int, int]:
        """How many contexts of how many pages each are looked at for so many, the longest of so many."""
        if self.cache.keys.dtype is torch.float32:
            return contexts, pages
        return contexts + -contexts % CROWD, _rounded(pages)  # whose kernels are made for each number

    def _crowd(self, members: list[int]) -> Crowd:
        cache, spans = self.cache, [self._spans[i] for i in members]
        found = [cache.pages(span.slot, span.end) for span in spans]
        count, most = self._crowd_size(len(members), max(len(pages) for pages, _ in found))
        missing = count - len(members)
        spans, found = [*spans, *spans[:1] * missing], [*found, *found[:1] * missing]
        entries = np.arange(most * PAGE)
        offsets = np.array([offset for _, offset in found])[:, None]
        ends = offsets + np.array([span.end for span in spans])[:, None]
        hidden = (entries < offsets) | (entries >= ends)
        begins = [self._begins[i] for i in members]
        rows = np.array([*begins, *begins[:1] * (len(spans) - len(members))])
        filled = np.array([[*pages, *pages[:1] * (most - len(pages))] for pages, _ in found])
        # There are crowds on the CPU alone, where nothing has to go up.
        members_at, pages_at, others = map(
            torch.from_numpy, (rows, filled.reshape(-1), np.flatnonzero(hidden))
        )
        return Crowd(members_at, len(members), pages_at, torch.from_numpy(hidden[:, None]), others)

    def _apart(self, runs: list[Run], count: int, window: int | None) -> int:
        """How many of a context's runs all of its last `count` rows see, and are looked at by themselves."""
        size = sum(n for _, n in runs) * self.cache.row_bytes
        if not self._in_parts or len(runs) > MOST_RUNS or size <= GATHERED_BYTES:
            return 0
        if window is not None and count > 1:
            return 0
        apart, own = len(runs) - 1, runs[-1][1]
        while own < count:
            apart -= 1
            own += runs[apart][1]
        return apart

    def _sight(self, spans: list[int], runs: list[Run], mask: Tensor | None) -> Sight:
        views = [self.cache.rows(*run) for run in runs]
        keys, values = ([slab.unsqueeze(1).unbind(0) for slab in slabs] for slabs in zip(*views, strict=True))
        return Sight(spans, keys, values, mask)

    def _mask(self, count: int, runs: list[Run], window: int | None) -> Tensor:
        """Of `count` rows, the last in these runs: each sees itself and, in its window, what came before."""
        seen = sum(n for _, n in runs)
        known = self._masks.get((count, seen, window))
        if known is None:
            keys = self.cache.keys
            hidden = torch.full((count, seen), -torch.inf, dtype=keys.dtype, device=keys.device)
            mask = hidden.triu(seen - count + 1)
            if window is not None:
                mask += hidden.tril(seen - count - window)
            known = self._masks[count, seen, window] = mask.repeat(self._groups, 1)
        return known


@dataclass
class StepLayout:
    """One row each of many contexts: all of them attend in one call."""

    cache: KVCache
    rows: Tensor
    """Rows of the cache that they are written to."""
    contexts: Contexts
    way: Way

    def attend(self, queries: Tensor, layer: int, scaling: float | None, window: int | None) -> Tensor:
        """As `PackedLayout`."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        return self.way(queries, keys, values, self.contexts, scaling, window)


@dataclass
class MixedLayout:
    """Rows of both kinds, each by the layout of its kind."""

    cache: KVCache
    rows: Tensor
    parts: list[tuple[Tensor, "PackedLayout | StepLayout"]]
    """Which of the rows each has."""

    def attend(self, queries: Tensor, layer: int, scaling: float | None, window: int | None) -> Tensor:
        """As `PackedLayout`."""
        seen = torch.empty_like(queries)
        for at, part in self.parts:
            seen.index_copy_(0, at, part.attend(queries.index_select(0, at), layer, scaling, window))
        return seen


Layout = PackedLayout | StepLayout | MixedLayout


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
    query, key, value = (it[0].transpose(0, 1) for it in (query, key, value))
    return attend(packed, layer, query, key, value, scaling, sliding_window)[None], None


def attend(
    packed: Layout,
    layer: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """As `packed_attention`, of [rows, heads or kv heads, head]; the result is [rows, heads, head]."""
    packed.cache.keys[layer].index_copy_(1, packed.rows, key.transpose(0, 1))
    packed.cache.values[layer].index_copy_(1, packed.rows, value.transpose(0, 1))
    return packed.attend(query, layer, scaling, window)


def _attend_each(
    queries: Sequence[Tensor], sights: list[Sight], layer: int, scaling: float | None
) -> dict[int, Tensor]:
    """What the rows of each span see that has sights, [count, kv heads, groups, head]."""
    if len(sights) == len({i for sight in sights for i in sight.spans}):
        return {
            i: _attend(queries[i], *sight.of(layer), sight.mask, scaling)
            for sight in sights
            for i in sight.spans
        }
    return _attend_in_parts(queries, sights, layer, scaling)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float | None
) -> Tensor:
    """What the rows of one span see, [count, kv heads, groups, head]."""
    count, kv, groups, head = queries.shape
    if count == 1:
        return F.scaled_dot_product_attention(queries, keys, values, scale=scaling)
    rows = queries.permute(1, 2, 0, 3).reshape(1, kv, groups * count, head)
    seen = F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scaling)
    return seen[0].view(kv, groups, count, head).permute(2, 0, 1, 3)


def _attend_in_parts(
    queries: Sequence[Tensor], sights: list[Sight], layer: int, scaling: float | None
) -> dict[int, Tensor]:
    """As `_attend_each`; what is seen in parts is weighed afterwards."""
    parts: defaultdict[int, list[tuple[Tensor, Tensor]]] = defaultdict(list)
    for sight in sights:
        asked = [queries[i] for i in sight.spans]
        together = asked[0] if len(asked) == 1 else torch.cat(asked)
        seen, weight = _attend_weighed(together, *sight.of(layer), sight.mask, scaling)
        counts = [len(rows) for rows in asked]
        for i, part in zip(
            sight.spans, zip(seen.split(counts), weight.split(counts), strict=True), strict=True
        ):
            parts[i].append(part)
    outputs = {i: mine[0][0] for i, mine in parts.items()}
    for size in {len(mine) for mine in parts.values()} - {1}:
        members = [i for i, mine in parts.items() if len(mine) == size]
        seen = torch.stack([torch.cat([parts[i][k][0] for i in members]) for k in range(size)])
        weight = torch.stack([torch.cat([parts[i][k][1] for i in members]) for k in range(size)])
        whole = (seen * weight.softmax(0).unsqueeze(-1)).sum(0).to(seen.dtype)
        for i, rows in zip(members, whole.split([len(queries[i]) for i in members]), strict=True):
            outputs[i] = rows
    return outputs


def _attend_weighed(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """As `_attend`, and what each row's scores come to, as a logarithm: float32 [count, kv heads, groups]."""
    count, kv, groups, head = queries.shape
    rows = queries.permute(1, 2, 0, 3).reshape(1, kv, groups * count, head)
    seen, weight = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        rows, keys, values, attn_mask=mask, scale=scaling
    )
    return (
        seen[0].view(kv, groups, count, head).permute(2, 0, 1, 3),
        weight[0].view(kv, groups, count).permute(2, 0, 1),
    )


def _rounded(pages: int) -> int:
    """Not many different numbers: even ones, beyond sixteen four between each and twice as many."""
    step = 1 << max(1, (pages - 1).bit_length() - 3)
    return -(-pages // step) * step


AttentionInterface.register(NAME, packed_attention)
