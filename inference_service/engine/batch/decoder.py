"""A transformers decoder that runs rows of many sessions in one forward.

Its rows are packed: each session's queries attend only to its own slot of the KV cache.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference_service.device.common_layers import CommonLayers
from inference_service.device.compiling import compiles
from inference_service.device.flex import Part, Tiles, tiled
from inference_service.device.graph import (
    SIZES,
    Graph,
    graph_pool,
    size_for,
)
from inference_service.device.paged import (
    PAGE,
    AttentionBackend,
    Contexts,
    choose_backend,
)
from inference_service.device.rows import Rows
from inference_service.device.transfer import Array, upload
from inference_service.engine.batch.attention import (
    NAME,
    Layout,
    MixedLayout,
    PackedLayout,
    Span,
    StepLayout,
    TileLayout,
)
from inference_service.engine.batch.kvcache import KVCache
from inference_service.engine.batch.pages import slot_pages
from inference_service.kernels.layers import Layers, PagedCacheView

_WIDTHS = (16, 32, 64, 128, 256, 512, 1024)
"""Page counts for which there are captured steps; the longest contexts have one of their own."""
_ROWS = (*SIZES, 256, 512, 1024)
"""Row counts for which there are captured forwards where prompts and single rows attend in one call."""
MOST_ROWS = _ROWS[-1]
"""Limit of rows in one forward. More rows take several forwards in sequence."""


@dataclass(frozen=True)
class Segment:
    """New rows of one session, their first cache index and first position."""

    slot: int
    start: int
    position: int
    rows: Rows


class PackedDecoder:
    """Any decoder-only backbone (`Qwen3Model`, `LlamaModel`, ...) over a `KVCache`.

    `conditions` are more arguments of its layers, the same for all sessions.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        slots: int,
        capacity: int,
        conditions: Mapping[str, Tensor] | None = None,
        embeddings: nn.Module | None = None,
        *,
        in_steps: bool | None = None,
        backend: AttentionBackend | None = None,
    ) -> None:
        """Wrap the backbone.

        `embeddings` are those of ids; without them, every row is an embedding of media. With `in_steps`, the
        default on every device but the CPU, single rows attend in one call, and forwards of single rows have
        one of a few shapes. `backend` is the attention backend; None is the fastest of the device. A backend
        with `all_rows` takes prompts in such forwards too.
        """
        parameter = next(backbone.parameters())
        self.backbone = backbone
        self._embeddings = embeddings
        self.backbone.set_attn_implementation(NAME)
        self._conditions = dict(conditions or {})
        config = backbone.config
        self._groups = config.num_attention_heads // config.num_key_value_heads
        steps = parameter.device.type != "cpu" if in_steps is None else in_steps
        is_common = not steps and not self._conditions and Layers.fit(backbone)
        self._layers = Layers(backbone) if is_common else None
        heads, kv = config.num_attention_heads, config.num_key_value_heads
        head = getattr(config, "head_dim", None) or config.hidden_size // heads
        if steps and backend is None:
            backend = choose_backend(parameter.device, parameter.dtype, heads, kv, head)
        self.backend = backend if steps else None
        """The attention backend for single rows; None where they do not attend in one call."""
        self._takes_all = self.backend is not None and self.backend.all_rows
        self.cache = KVCache(
            *(config, slots, capacity, parameter.dtype, parameter.device),
            spare=int(steps),
            aligned=steps and not self._takes_all,
        )
        is_compiled = steps and not self._conditions and compiles(parameter.device)
        is_compiled = is_compiled and CommonLayers.fit(backbone)
        self._compiled = CommonLayers(backbone) if is_compiled else None
        self.pool = graph_pool(parameter.device)
        """Memory pool of the graphs of all its steps."""
        self._steps: dict[Shape, Step] = {}
        self._forwards: dict[tuple[int, bool], Forward] = {}

    def forward(self, segments: list[Segment]) -> list[Tensor]:
        """Return final-norm hidden states [n, hidden] of each segment, in order."""
        made = [self._run(piece, _counts(piece), None)[0] for piece, _ in self._pieces(segments)]
        return list((made[0] if len(made) == 1 else torch.cat(made)).split(_counts(segments)))

    def last(self, segments: list[Segment], *others: Array) -> tuple[Tensor, list[Tensor]]:
        """Return the hidden state of the last row of each segment, [segments, hidden], and `others` on the
        device.

        `others` are uploaded together with the rows.
        """
        (first, ended), *further = self._pieces(segments)
        hidden, there = self._run_to_ends(first, *others)
        if not further:
            return hidden, there
        made = [hidden[:ended]]
        made += [self._run_to_ends(piece)[0][:ended] for piece, ended in further]
        return torch.cat(made), there

    def _run_to_ends(self, segments: list[Segment], *others: Array) -> tuple[Tensor, list[Tensor]]:
        counts = _counts(segments)
        return self._run(segments, counts, np.cumsum(counts) - 1, *others)

    def _pieces(self, segments: list[Segment]) -> list[tuple[list[Segment], int]]:
        """Cut segments into forwards of at most `MOST_ROWS` rows, each with the number of segments that end
        in it.

        A segment that continues in the next forward is the last one of its forward. The cache then has room
        for all rows.
        """
        pieces, room = list[tuple[list[Segment], int]](), 0
        for it in segments:
            self.cache.reserve(it.slot, it.start, it.start + len(it.rows))
        if sum(len(it.rows) for it in segments) <= MOST_ROWS:
            return [(segments, len(segments))]
        for it in segments:
            done = 0
            while done < len(it.rows):
                if not room:
                    pieces.append(([], 0))
                    room = MOST_ROWS
                part, ended = pieces[-1]
                count = min(room, len(it.rows) - done)
                part.append(
                    Segment(it.slot, it.start + done, it.position + done, it.rows[done : done + count])
                )
                done, room = done + count, room - count
                pieces[-1] = part, ended + (done == len(it.rows))
        return pieces

    def _run(
        self, segments: list[Segment], counts: list[int], asked: Array | None, *others: Array
    ) -> tuple[Tensor, list[Tensor]]:
        """Return hidden states [n, hidden] of all rows, or of the `asked` ones; the cache has room
        for them.
        """
        rows = Rows.join([segment.rows for segment in segments])
        if self._takes_all:
            return self._in_tiles(segments, rows, asked, others)
        if self.backend is not None and len(rows) == len(segments) <= SIZES[-1]:
            return self._step(segments, rows, self.backend, others)
        if len(rows) == len(segments):
            asked = None
        positions = np.concatenate(
            [
                np.arange(s.position, s.position + n, dtype=np.int64)
                for s, n in zip(segments, counts, strict=True)
            ]
        )
        arrays: list[Array]
        make: Callable[..., Layout | PagedCacheView]
        arrays, make = self._layout(segments) if self._layers is None else self._page_view(segments)
        if asked is not None:
            arrays.append(asked)
        positions_there, ids, media_there, *there = upload(
            self.cache.device, positions, rows.ids, np.flatnonzero(rows.is_media), *arrays, *others
        )
        embeds = self._embedded(rows, ids, media_there)
        there, beside = there[: len(arrays)], there[len(arrays) :]
        last = None if asked is None else there.pop()
        layout = make(*there)
        if isinstance(layout, PagedCacheView):
            assert self._layers is not None
            return self._layers.run(embeds, positions_there, layout, last), beside
        hidden = self.backbone_over(embeds, positions_there, layout)
        return hidden if last is None else hidden.index_select(0, last), beside

    def _page_view(self, segments: list[Segment]) -> tuple[list[Array], Callable[..., PagedCacheView]]:
        """Lay rows out as `_layout` does, for kernels that read page tables."""
        spans, table, row = [], list[int](), 0
        for it in segments:
            count, end = len(it.rows), it.start + len(it.rows)
            pages, offset = self.cache.pages(it.slot, end)
            spans.append((row, count, len(table), offset, offset + end))
            table += pages
            row += count
        arrays = np.array(spans, np.int64).reshape(-1, 5), np.array(table, np.int32)
        return [*arrays], partial(PagedCacheView, self.cache.keys, self.cache.values)

    def _layout(self, segments: list[Segment]) -> tuple[list[Array], Callable[..., Layout]]:
        """Return the arrays to upload with the rows, and a function that makes the layout from them."""
        counts = [len(segment.rows) for segment in segments]
        cells = np.concatenate(
            [self.cache.cells(s.slot, s.start, s.start + n) for s, n in zip(segments, counts, strict=True)]
        )
        together = self.backend is not None
        alone = [it for it in segments if together and len(it.rows) == 1]
        packed = self.layout([it for it in segments if not together or len(it.rows) > 1])

        def make(rows: Tensor, *others: Tensor) -> Layout:
            packed.rows = rows
            if self.backend is None or not alone:
                return packed
            ends, table, at_alone, at_packed = others
            step = StepLayout(self.cache, rows, Contexts(table, ends), self.backend)
            parts: list[tuple[Tensor, PackedLayout | StepLayout]] = [(at_alone, step)]
            return MixedLayout(self.cache, rows, [*parts, (at_packed, packed)] if len(at_packed) else parts)

        if not alone:
            return [cells], make
        table, ends = self._contexts(alone, len(alone))
        is_alone = np.repeat([n == 1 for n in counts], counts)
        return [cells, ends, table, np.flatnonzero(is_alone), np.flatnonzero(~is_alone)], make

    def _contexts(self, alone: list[Segment], size: int) -> tuple[Array, Array]:
        """Return the pages [size, n] and ends [size] of the contexts of single rows.

        Padding attends to one row of the spare page.
        """
        pages = [self.cache.pages(it.slot, it.start + 1)[0] for it in alone]
        most = slot_pages(self.cache.capacity)
        width = min(size_for(max(map(len, pages)), _WIDTHS) or most, most)
        table = np.full((size, width), self.cache.pool.pages, np.int32)
        ends = np.ones(size, np.int32)
        for row, (segment, own) in enumerate(zip(alone, pages, strict=True)):
            table[row, : len(own)] = own
            ends[row] = segment.start + 1
        return table, ends

    def _step(
        self, segments: list[Segment], rows: Rows, backend: AttentionBackend, others: Sequence[Array]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run one row of each segment, as `_run` does."""
        count = len(segments)
        size = size_for(count)
        assert size is not None
        table, ends = self._contexts(segments, size)
        spare = self.cache.pool.pages * PAGE
        places = np.zeros((3, size), np.int64)
        places[2] = spare + np.arange(size) % PAGE
        places[0, :count] = rows.ids
        places[1, :count] = [segment.position for segment in segments]
        places[2, :count] = [self.cache.cells(it.slot, it.start, it.start + 1)[0] for it in segments]
        media_rows = [] if rows.media is None else [np.flatnonzero(rows.is_media)]
        places_there, ends_there, table_there, *there = upload(
            self.cache.device, places, ends, table, *media_rows, *others
        )
        media_at = there.pop(0) if media_rows else None
        step = self._step_of(Shape(size, table.shape[1]), backend)
        return step(places_there, ends_there, table_there, rows.media, media_at)[:count], there

    def _step_of(self, shape: "Shape", backend: AttentionBackend) -> "Step":
        step = self._steps.get(shape)
        if step is None:
            step = self._steps[shape] = Step(self, shape, backend, self.pool)
        return step

    def _in_tiles(
        self, segments: list[Segment], rows: Rows, asked: Array | None, others: Sequence[Array]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run rows of any kind as `_run` does, padded to one of a few row counts."""
        count = len(rows)
        size = size_for(count, _ROWS)
        assert size is not None
        arrays = self._tile_arrays(segments, rows, size)
        more = [] if len(segments) == count or asked is None else [asked]
        if rows.media is not None:
            more.append(np.flatnonzero(rows.is_media))
        there = upload(self.cache.device, *arrays, *more, *others)
        given, there = there[: len(arrays)], there[len(arrays) :]
        last = there.pop(0) if len(segments) != count and asked is not None else None
        media_at = there.pop(0) if rows.media is not None else None
        hidden = self._forward_of(size, has_media=rows.media is not None)(given, rows.media, media_at)
        return hidden[:count] if last is None else hidden.index_select(0, last), there

    def _tile_arrays(self, segments: list[Segment], rows: Rows | None, size: int) -> list[Array]:
        """Return ids, positions and cells of `size` rows, int64 [3, size], and the arrays for `Tiles.of`."""
        places = np.zeros((3, size), np.int64)
        places[2] = self.cache.pool.pages * PAGE + np.arange(size) % PAGE
        at, parts = 0, list[Part]()
        for it in segments:
            n, end = len(it.rows), it.start + len(it.rows)
            places[1, at : at + n] = np.arange(it.position, it.position + n)
            places[2, at : at + n] = self.cache.cells(it.slot, it.start, end)
            parts.append(Part(*self.cache.pages(it.slot, end), it.start, n))
            at += n
        if rows is not None:
            places[0, :at] = rows.ids
        cache, most = self.cache, slot_pages(self.cache.capacity)
        return [places, *tiled(parts, size, cache.slots, most, self._groups, cache.pool.pages)]

    def _forward_of(self, size: int, *, has_media: bool) -> "Forward":
        shape = size, has_media or self._embeddings is None or size > SIZES[-1]
        forward = self._forwards.get(shape)
        if forward is None:
            like = self._tile_arrays([], None, size)
            forward = self._forwards[shape] = Forward(self, like, shape[1])
        return forward

    def rows_ahead(self, segments: list[Segment], count: int, size: int) -> list[Array]:
        """Return the places of `count` single rows after each segment; the cache then has room for them.

        The arrays are: positions of the first rows, int64 [size]; cells of all rows, int64 [count, size];
        pages of their contexts, int32 [size, n]; and the start of each context in its first page and its end
        with the first row, int32 [size].
        """
        cache, spare_page = self.cache, self.cache.pool.pages
        positions = np.zeros(size, np.int64)
        cells = np.tile(spare_page * PAGE + np.arange(size, dtype=np.int64) % PAGE, (count, 1))
        table = np.full((size, slot_pages(cache.capacity)), spare_page, np.int32)
        begins, ends = np.zeros(size, np.int32), np.ones(size, np.int32)
        for row, it in enumerate(segments):
            first = it.start + len(it.rows)
            cache.reserve(it.slot, first, first + count)
            positions[row] = it.position + len(it.rows)
            cells[:, row] = cache.cells(it.slot, first, first + count)
            pages, offset = cache.pages(it.slot, first + count)
            table[row, : len(pages)] = pages
            begins[row], ends[row] = offset, offset + first + 1
        return [positions, cells, table, begins, ends]

    def together(self, contexts: Contexts, cells: Tensor) -> Layout:
        """Lay out the last row of each context, written to rows `cells` [n] of the cache."""
        assert self.backend is not None
        if not self._takes_all:
            return StepLayout(self.cache, cells, contexts, self.backend)
        pages = self.cache.keys.shape[2] // PAGE
        begins = torch.zeros_like(contexts.ends) if contexts.begins is None else contexts.begins
        tiles = Tiles.of_last_rows(contexts.table, begins, contexts.ends, self._groups, pages)
        return TileLayout(self.cache, cells, tiles)

    def capture(self) -> None:
        """Capture a step of each shape once, so that no session waits for that."""
        if self.backend is None:
            return
        if self._takes_all:
            for size in reversed(_ROWS):
                for has_media in {self._embeddings is None or size > SIZES[-1], True}:
                    given = upload(self.cache.device, *self._tile_arrays([], None, size))
                    self._forward_of(size, has_media=has_media)(given, None, None)
            return
        keys, spare = self.cache.keys, self.cache.pool.pages
        most = slot_pages(self.cache.capacity)
        widths = sorted({min(width, most) for width in _WIDTHS})
        for size in [it for it in SIZES if it < 2 * self.cache.slots]:
            for width in widths:
                ends = torch.ones(size, dtype=torch.int32, device=keys.device)
                places = torch.zeros(3, size, dtype=torch.int64, device=keys.device)
                places[2] = spare * PAGE
                table = torch.full((size, width), spare, dtype=torch.int32, device=keys.device)
                self._step_of(Shape(size, width), self.backend)(places, ends, table, None, None)

    def backbone_over(self, embeds: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Return final-norm hidden states [n, hidden] of embeddings [n, hidden] at positions [n]."""
        if self._compiled is not None:
            return self._compiled.run(embeds, positions, layout)
        hidden: Tensor = self.backbone(
            inputs_embeds=embeds[None],
            position_ids=positions[None],
            attention_mask={"full_attention": None, "sliding_attention": None},
            use_cache=False,
            packed=layout,
            **self._conditions,
        ).last_hidden_state[0]
        return hidden

    def embed_ids(self, ids: Tensor) -> Tensor:
        """Return embeddings [n, hidden] of ids [n]."""
        assert self._embeddings is not None
        embedded: Tensor = self._embeddings(ids)
        return embedded

    def embed_with_media(self, ids: Tensor, media: Tensor) -> Tensor:
        """Return embeddings [n, hidden] of ids [n], zero for negative ids, plus `media` [n, hidden]."""
        if self._embeddings is None:
            return media
        return media + self.embed_ids(ids.clamp(min=0)).masked_fill((ids < 0)[:, None], 0)

    def embed(self, rows: Rows) -> Tensor:
        """Return embeddings [n, hidden] of rows."""
        return self._embedded(rows, *upload(self.cache.device, rows.ids, np.flatnonzero(rows.is_media)))

    def _embedded(self, rows: Rows, ids: Tensor, media_at: Tensor) -> Tensor:
        """Return embeddings [n, hidden] of rows whose ids, and whose places of media, are on the device."""
        if rows.media is not None and (rows.ids < 0).all():
            return rows.media
        if rows.media is None:
            return self.embed_ids(ids)
        embedded = self.embed_ids(ids.clamp(min=0)).masked_fill((ids < 0)[:, None], 0)
        return embedded.index_add(0, media_at, rows.media)

    def layout(self, segments: list[Segment]) -> PackedLayout:
        """Return the layout of these rows; the cache then has room for them."""
        spans = [Span(segment.slot, segment.start, len(segment.rows)) for segment in segments]
        for span in spans:
            self.cache.reserve(span.slot, span.start, span.end)
        return PackedLayout(self.cache, spans, self._groups)

    def rotate(self, keys: Tensor, offset: int) -> Tensor:
        """Return keys [..., n, head size] in float32, rotated forward by `offset` positions."""
        position = torch.full((1, 1), offset, device=keys.device)
        cos, sin = self.backbone.rotary_emb(keys, position)
        first, second = keys.chunk(2, dim=-1)
        turned: Tensor = keys * cos[0] + torch.cat([-second, first], dim=-1) * sin[0]
        return turned


def _counts(segments: list[Segment]) -> list[int]:
    return [len(segment.rows) for segment in segments]


class Shape(NamedTuple):
    """Shape of a step: rows, and pages in a context."""

    rows: int
    pages: int


class Step:
    """The captured forward of one row from each context, in its own memory: see `Graph`."""

    def __init__(self, decoder: PackedDecoder, shape: Shape, backend: AttentionBackend, pool: Any) -> None:
        keys = decoder.cache.keys
        make = partial(torch.zeros, device=keys.device)
        self._decoder, self._backend = decoder, backend
        self._places = make(3, shape.rows, dtype=torch.int64)
        self._ends = make(shape.rows, dtype=torch.int32)
        self._table = make(shape.rows, shape.pages, dtype=torch.int32)
        self._media = make(shape.rows, decoder.backbone.config.hidden_size, dtype=keys.dtype)
        self._graph = Graph(keys.device, self._compute, pool)

    def __call__(
        self, places: Tensor, ends: Tensor, table: Tensor, media: Tensor | None, media_at: Tensor | None
    ) -> Tensor:
        """Return hidden states [rows, hidden].

        `places` holds id, position and cell of each row, int64 [3, rows]. `ends` holds the length of its
        context, int32 [rows]. `table` holds pages, int32 [rows, pages]. `media` embeddings [n, hidden] belong
        to rows `media_at` [n].
        """
        self._places.copy_(places)
        self._ends.copy_(ends)
        self._table.copy_(table)
        self._media.zero_()
        if media is not None and media_at is not None:
            self._media.index_copy_(0, media_at, media)
        return self._graph()

    def _compute(self) -> Tensor:
        ids, positions, cells = self._places.unbind()
        contexts = Contexts(self._table, self._ends)
        layout = StepLayout(self._decoder.cache, cells, contexts, self._backend)
        embeds = self._decoder.embed_with_media(ids, self._media)
        return self._decoder.backbone_over(embeds, positions, layout)


class Forward:
    """The captured forward of rows from any contexts, in its own memory: see `Graph`."""

    def __init__(self, decoder: PackedDecoder, like: Sequence[Array], has_media: bool) -> None:
        """Prepare for arrays shaped like `like`; with `has_media`, rows may be embeddings of media."""
        keys = decoder.cache.keys
        self._decoder = decoder
        self._given = upload(keys.device, *like)
        size = like[0].shape[1]
        hidden = decoder.backbone.config.hidden_size
        self._media = torch.zeros(size, hidden, dtype=keys.dtype, device=keys.device) if has_media else None
        self._graph = Graph(keys.device, self._compute, decoder.pool)

    def __call__(self, given: Sequence[Tensor], media: Tensor | None, media_at: Tensor | None) -> Tensor:
        """Return hidden states [rows, hidden].

        `given` is like `like`, on the device. `media` embeddings [n, hidden] belong to rows `media_at` [n].
        """
        torch._foreach_copy_(self._given, list(given))
        if self._media is not None:
            self._media.zero_()
            if media is not None and media_at is not None:
                self._media.index_copy_(0, media_at, media)
        return self._graph()

    def _compute(self) -> Tensor:
        decoder = self._decoder
        places, *arrays = self._given
        ids, positions, cells = places.unbind()
        tiles = Tiles.of(arrays, decoder.cache.keys.shape[2] // PAGE)
        embeds = decoder.embed_ids(ids) if self._media is None else decoder.embed_with_media(ids, self._media)
        return decoder.backbone_over(embeds, positions, TileLayout(decoder.cache, cells, tiles))
