"""The common layers of a decoder on the CPU: linear layers, with everything between them in `native`.

Tensors that all layers share are checked once a forward, and those of a layer in that layer, before `native`
gets their addresses. `native` checks sizes, spans and page numbers.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference_service.kernels.packed_linear import PackedLinear, is_common, pieces_of
from inference_service.kernels.selection import usable
from inference_service.kernels.tensors import address

LANES = 16
"""Sizes of heads and gates are multiples of this."""
LONGEST_HEAD = 1024
"""Limit of a head's size."""


@dataclass
class PagedCacheView:
    """The paged KV cache for a batch of packed rows: keys, values, and the pages of each session."""

    keys: Tensor
    """[layers, kv heads, rows, head size], as are `values`."""
    values: Tensor
    spans: Tensor
    """Spans of the sessions, int64 [sessions, 5]: first packed row, number of rows, start of the pages in the
    table, and start and end of the context, counted from the beginning of its first page.
    """
    table: Tensor
    """Pages, int32 [n]."""

    def ends(self, rows: Tensor) -> "PagedCacheView":
        """Return the view of only these rows, int64 [n], each the last one of its session.

        The keys and values of all other rows must be in the cache.
        """
        lasts = self.spans[:, 0] + self.spans[:, 1] - 1
        spans = self.spans[torch.isin(lasts, rows)]
        spans[:, 0], spans[:, 1] = rows, 1
        return PagedCacheView(self.keys, self.values, spans, self.table)

    def part(self, begin: int, end: int) -> "PagedCacheView":
        """Return the view of packed rows `begin` to `end`.

        The keys and values of earlier rows must be in the cache when it is used.
        """
        firsts, lasts = self.spans[:, 0], self.spans[:, 0] + self.spans[:, 1]
        kept = (firsts < end) & (lasts > begin)
        firsts, lasts, spans = firsts[kept], lasts[kept], self.spans[kept]
        spans[:, 4] -= (lasts - end).clamp(min=0)
        spans[:, 0] = firsts.clamp(min=begin) - begin
        spans[:, 1] = lasts.clamp(max=end) - begin - spans[:, 0]
        return PagedCacheView(self.keys, self.values, spans, self.table)

    def arguments(self, dtype: torch.dtype, shape: "_Shape", rows: int) -> "_Arguments":
        """Return the kernels' arguments for this view of `rows` packed rows.

        Raises `TypeError` or `ValueError` unless keys and values are [layers, kv, n, head] of `dtype`.
        """
        length, head = int(self.keys.shape[-2]), shape.head
        slab, count, pages = (shape.layers, shape.kv, length, head), len(self.spans), len(self.table)
        return _Arguments(
            address(self.keys, dtype, slab),
            address(self.values, dtype, slab),
            shape.kv * length * head * dtype.itemsize,
            (
                address(self.spans, torch.int64, (count, 5)), address(self.table, torch.int32, (pages,)),
                count, pages, rows, shape.heads, shape.kv, head, length * head,
            ),
        )  # fmt: skip


class _Shape(NamedTuple):
    """Sizes that all layers of a backbone share."""

    layers: int
    heads: int
    kv: int
    head: int


class _Arguments(NamedTuple):
    """Checked addresses of keys and values, the bytes of a layer of either, and the other arguments."""

    keys: int
    values: int
    layer: int
    others: tuple[int, ...]

    def of(self, layer: int) -> tuple[int, ...]:
        """Return the arguments of one layer."""
        return self.keys + layer * self.layer, self.values + layer * self.layer, *self.others


class Layers:
    """The computation of a backbone of common layers."""

    @staticmethod
    def fit(backbone: Any) -> bool:
        """Return whether the kernels are usable and support all layers of `backbone`."""
        config, layers = backbone.config, list(getattr(backbone, "layers", ()))
        parameter = next(backbone.parameters())
        return (
            usable("native")
            and parameter.device.type == "cpu"
            and parameter.dtype in (torch.float32, torch.bfloat16)
            and all(it.dtype is parameter.dtype for it in backbone.parameters())
            and bool(layers)
            and all(is_common(it) and _is_known(it.self_attn.head_dim) for it in layers)
            and config.hidden_act == "silu"
            and config.intermediate_size % LANES == 0
            and 2 * len(backbone.rotary_emb.inv_freq) == layers[0].self_attn.head_dim
        )

    def __init__(self, backbone: Any) -> None:
        self._rotary = backbone.rotary_emb
        self._layers = [_Layer(it) for it in backbone.layers]
        self._is_cut = self._layers[0].is_cut
        norms = [norm for it in self._layers for norm in (it.before, it.between)]
        self._first = norms[0]
        self._next = [*norms[2::2], _Norm(backbone.norm, backbone.config.hidden_size)]
        self._dtype = next(backbone.parameters()).dtype
        self._width = int(backbone.config.hidden_size)
        shapes = {(it.heads, it.kv, it.head) for it in self._layers}
        if len(shapes) != 1 or [it.index for it in self._layers] != list(range(len(self._layers))):
            raise ValueError("Layers of a backbone are numbered from 0 on and have heads of one shape.")
        self._shape = _Shape(len(self._layers), *shapes.pop())

    def run(
        self, rows: Tensor, positions: Tensor, view: PagedCacheView, asked: Tensor | None = None
    ) -> Tensor:
        """Return final-norm hidden states of embeddings [n, hidden] at positions [n], or of the `asked` rows.

        `asked` may hold the last rows of sessions, int64 [sessions]: then the last layer computes no others.
        Raises `TypeError`, `ValueError` or `IndexError` for tensors, spans or pages that do not fit each
        other.
        """
        if rows.dtype is not self._dtype or rows.ndim != 2 or rows.shape[1] != self._width:
            given = f"{list(rows.shape)} in {rows.dtype}"
            raise ValueError(f"Rows are [n, {self._width}] in {self._dtype}, not {given}.")
        if positions.shape != rows.shape[:1]:
            raise ValueError(f"{len(rows)} rows have as many positions, not {list(positions.shape)}.")
        if asked is not None and len(asked) > len(rows):
            raise ValueError(f"At most {len(rows)} rows can be asked for, not {len(asked)}.")
        pieces = pieces_of(len(rows)) if self._is_cut else ((0, len(rows), len(rows)),)
        if len(pieces) == 1:
            return self._run(rows, positions, view, pieces[0][2], asked)
        made = []
        for begin, end, size in pieces:
            mine = asked if asked is None else asked[(asked >= begin) & (asked < end)] - begin
            part = view.part(begin, end)
            made.append(self._run(rows[begin:end], positions[begin:end], part, size, mine))
        return torch.cat(made)

    def _run(
        self, rows: Tensor, positions: Tensor, view: PagedCacheView, size: int, asked: Tensor | None
    ) -> Tensor:
        """Run as `run` does, on rows that are padded to `size`."""
        count = len(rows)
        rows = F.pad(rows, (0, 0, 0, size - count)) if size > count else rows.contiguous().clone()
        angles = self._rotary(rows[None], positions[None])  # kept, because the kernels read their memory
        cosines, sines = (address(it[0], self._dtype, (count, self._shape.head)) for it in angles)
        where = view.arguments(self._dtype, self._shape, count)
        buffers = self._layers[0].buffers(rows)
        normed = torch.empty_like(rows)
        self._first(rows, None, normed)
        for layer, norm in zip(self._layers, self._next, strict=True):
            layer.rotate(normed, (cosines, sines), where, buffers)
            if asked is not None and layer is self._layers[-1]:
                if not len(asked):
                    return normed[:0]
                ends = view.ends(asked)
                layer.attend(ends.arguments(self._dtype, self._shape, count), buffers)
                rows, normed, count = rows[asked], normed[: len(asked)], len(asked)
                buffers = _Buffers(buffers.queries, buffers.attended[asked], buffers.gated[: len(asked)])
            else:
                layer.attend(where, buffers)
            layer.gate(rows, normed, buffers)
            norm(rows, layer.down(buffers.gated), normed)
        return normed[:count]


@dataclass
class _Buffers:
    """Memory for results of one layer, which the next layer overwrites."""

    queries: Tensor
    """[n, heads * head size], as is `attended`."""
    attended: Tensor
    gated: Tensor
    """[n, width]."""


class _Norm:
    """Root mean square normalisation, times weights."""

    def __init__(self, norm: Any, width: int) -> None:
        """Create the norm. Raises `ValueError` unless there is a weight for each number of a row."""
        from inference_service.kernels import native

        self._weight, self._epsilon = norm.weight.detach().contiguous(), float(norm.variance_epsilon)
        address(self._weight, self._weight.dtype, (width,))
        self._norm = native.norm

    def __call__(self, rows: Tensor, more: Tensor | None, out: Tensor) -> None:
        """Add `more` to `rows` [n, width] if it is given, and write the normalised rows into `out`.

        `Layers` makes `rows` and `out`, which are alike; `more` comes from a layer, and is checked here.
        """
        at = rows.data_ptr()
        added, total = (0, 0) if more is None else (address(more, rows.dtype, rows.shape), at)
        self._norm(
            self._epsilon, at, added, total, self._weight.data_ptr(), out.data_ptr(), *rows.shape,
            _is_half(rows),
        )  # fmt: skip


class _Layer:
    """A decoder layer: norm, attention, norm, gated network."""

    def __init__(self, layer: Any) -> None:
        from inference_service.kernels import native

        self._rotate, self._attend, self._gate = native.turn, native.attend, native.gate
        attention, network = layer.self_attn, layer.mlp
        config, self.head = attention.config, attention.head_dim
        self.heads, self.kv = config.num_attention_heads, config.num_key_value_heads
        self.width = config.intermediate_size
        size = config.hidden_size
        self.before = _Norm(layer.input_layernorm, size)
        self.between = _Norm(layer.post_attention_layernorm, size)
        self._project = _joined(attention, "qkv_proj", "q_proj", "k_proj", "v_proj")
        self._gates = _joined(network, "gate_up_proj", "gate_proj", "up_proj")
        self._out, self.down = _called(attention.o_proj), _called(network.down_proj)
        self.is_cut = isinstance(network.down_proj, PackedLinear) and network.down_proj.is_cut
        self.index, self._scaling = int(attention.layer_idx), float(attention.scaling)
        where = config if type(layer).__name__.startswith("Mistral") else attention
        self._window = int(getattr(where, "sliding_window", None) or 0)
        self._norms: Tensor | None = None
        self._epsilon = 0.0
        if hasattr(attention, "q_norm"):
            weights = (
                attention.q_norm.weight.expand(self.heads, -1),
                attention.k_norm.weight.expand(self.kv, -1),
            )
            self._norms = torch.cat(weights).detach()
            address(self._norms, self._norms.dtype, (self.heads + self.kv, self.head))
            self._epsilon = float(attention.q_norm.variance_epsilon)

    def buffers(self, rows: Tensor) -> _Buffers:
        """Return buffers for these rows; padding attends to nothing."""
        queries = rows.new_empty(len(rows), self.heads * self.head)
        return _Buffers(queries, torch.zeros_like(queries), rows.new_empty(len(rows), self.width))

    def rotate(self, normed: Tensor, angles: tuple[int, int], where: "_Arguments", buffers: _Buffers) -> None:
        """Write rotated queries into `buffers`, and rotated keys and the values into the cache.

        `angles` are the addresses of cosines and sines.
        """
        projected, norms, dtype = self._project(normed), self._norms, buffers.queries.dtype
        shape = len(buffers.queries), (self.heads + 2 * self.kv) * self.head
        self._rotate(
            self._epsilon, address(projected, dtype, shape), 0 if norms is None else norms.data_ptr(),
            *angles, buffers.queries.data_ptr(), *where.of(self.index), _is_half(normed),
        )  # fmt: skip

    def attend(self, where: "_Arguments", buffers: _Buffers) -> None:
        """Write the attention output of the rows in a view into `buffers`."""
        self._attend(
            self._scaling, buffers.queries.data_ptr(), buffers.attended.data_ptr(), *where.of(self.index),
            self._window, _is_half(buffers.attended),
        )  # fmt: skip

    def gate(self, rows: Tensor, normed: Tensor, buffers: _Buffers) -> None:
        """Add the attention output to `rows` [n, hidden], and leave the input of `down` in `buffers`."""
        self.between(rows, self._out(buffers.attended), normed)
        gates, gated, count = self._gates(normed), buffers.gated, len(rows)
        self._gate(
            address(gates, rows.dtype, (count, 2 * self.width)),
            gated.data_ptr(), count, self.width, _is_half(rows),
        )  # fmt: skip


def _is_known(head: int) -> bool:
    """Return whether the kernels support heads of this size."""
    return head % LANES == 0 and 0 < head <= LONGEST_HEAD


def _is_half(rows: Tensor) -> int:
    return int(rows.dtype is torch.bfloat16)


def _called(linear: nn.Module) -> Any:
    """Return the callable of a linear layer; for a `PackedLinear` it skips hooks and saves a microsecond."""
    return linear.forward if isinstance(linear, PackedLinear) else linear


def _joined(parent: nn.Module, name: str, *parts: str) -> Any:
    """Return a callable that computes several projections of the same rows, concatenated.

    It is the joined layer if `parent` has one by this `name`; otherwise it calls each of the `parts`.
    """
    if hasattr(parent, name):
        return _called(getattr(parent, name))
    layers = [getattr(parent, part) for part in parts]
    return lambda rows: torch.cat([layer(rows) for layer in layers], dim=-1)
