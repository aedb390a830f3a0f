"""The common layers of a decoder on the CPU: linear layers, and all that is between them by `native`."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference_service.kernels.packed_linear import PackedLinear, is_common, pieces_of

try:
    from inference_service.kernels import native
except ImportError:
    HAS_KERNELS = False
else:
    HAS_KERNELS = True
"""Not where there was no compiler when this package was installed."""

LANES = 16
"""Heads and gates come in multiples of so many numbers."""


@dataclass
class Places:
    """Where the packed rows of some sessions are in the pages of a cache."""

    keys: Tensor
    """[layers, kv heads, rows, head size], as are `values`."""
    values: Tensor
    spans: Tensor
    """Of each session, int64 [sessions, 5]: its first packed row, how many it has, where its pages begin in
    the table, and where its context begins and ends, counted from the beginning of its first page."""
    table: Tensor
    """Pages, int32 [n]."""

    def ends(self, rows: Tensor) -> "Places":
        """Of these rows alone, int64 [n], each the last one of its session; all others are in the cache."""
        lasts = self.spans[:, 0] + self.spans[:, 1] - 1
        spans = self.spans[torch.isin(lasts, rows)]
        spans[:, 0], spans[:, 1] = rows, 1
        return Places(self.keys, self.values, spans, self.table)

    def part(self, begin: int, end: int) -> "Places":
        """Of these rows alone; those before them are in the cache by then."""
        firsts, lasts = self.spans[:, 0], self.spans[:, 0] + self.spans[:, 1]
        kept = (firsts < end) & (lasts > begin)
        firsts, lasts, spans = firsts[kept], lasts[kept], self.spans[kept]
        spans[:, 4] -= (lasts - end).clamp(min=0)
        spans[:, 0] = firsts.clamp(min=begin) - begin
        spans[:, 1] = lasts.clamp(max=end) - begin - spans[:, 0]
        return Places(self.keys, self.values, spans, self.table)


class Layers:
    """What a backbone of common layers computes."""

    @staticmethod
    def fit(backbone: Any) -> bool:
        """Whether there are kernels, and nothing in its layers that they do not know."""
        config, layers = backbone.config, list(getattr(backbone, "layers", ()))
        parameter = next(backbone.parameters())
        return (
            HAS_KERNELS
            and parameter.device.type == "cpu"
            and parameter.dtype in (torch.float32, torch.bfloat16)
            and all(it.dtype is parameter.dtype for it in backbone.parameters())
            and bool(layers)
            and all(is_common(it) and it.self_attn.head_dim % LANES == 0 for it in layers)
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
        self._next = [*norms[2::2], _Norm(backbone.norm)]

    def run(self, rows: Tensor, positions: Tensor, places: Places, asked: Tensor | None = None) -> Tensor:
        """Final-norm hidden states of embeddings [n, hidden] at positions [n], or of those `asked` for.

        The last ones of sessions can be, int64 [sessions]: then the last layer computes no others.
        """
        pieces = pieces_of(len(rows)) if self._is_cut else ((0, len(rows), len(rows)),)
        if len(pieces) == 1:
            return self._run(rows, positions, places, pieces[0][2], asked)
        made = []
        for begin, end, size in pieces:
            mine = asked if asked is None else asked[(asked >= begin) & (asked < end)] - begin
            part = places.part(begin, end)
            made.append(self._run(rows[begin:end], positions[begin:end], part, size, mine))
        return torch.cat(made)

    def _run(
        self, rows: Tensor, positions: Tensor, places: Places, size: int, asked: Tensor | None
    ) -> Tensor:
        """As `run`, of rows that are filled up to so many."""
        count = len(rows)
        rows = F.pad(rows, (0, 0, 0, size - count)) if size > count else rows.contiguous().clone()
        cosines, sines = (it[0] for it in self._rotary(rows[None], positions[None]))
        room = self._layers[0].room(rows)
        normed = torch.empty_like(rows)
        self._first(rows, None, normed)
        for layer, norm in zip(self._layers, self._next, strict=True):
            layer.turn(normed, (cosines, sines), places, room)
            if asked is not None and layer is self._layers[-1]:
                if not len(asked):
                    return normed[:0]
                layer.see(places.ends(asked), room)
                rows, normed, count = rows[asked], normed[: len(asked)], len(asked)
                room = _Room(room.queries, room.seen[asked], room.gated[: len(asked)])
            else:
                layer.see(places, room)
            layer.think(rows, normed, room)
            norm(rows, layer.down(room.gated), normed)
        return normed[:count]


@dataclass
class _Room:
    """What is computed in a layer, and computed over in the next one."""

    queries: Tensor
    """[n, heads * head size], as is `seen`."""
    seen: Tensor
    gated: Tensor
    """[n, width]."""


class _Norm:
    """Of the root of mean squares, times weights."""

    def __init__(self, norm: Any) -> None:
        self._weight, self._epsilon = norm.weight.detach().contiguous(), float(norm.variance_epsilon)

    def __call__(self, rows: Tensor, more: Tensor | None, out: Tensor) -> None:
        """Adds `more` to `rows` [n, width] if there is any, and writes into `out` what they are normed."""
        added, total = (0, 0) if more is None else (more.data_ptr(), rows.data_ptr())
        native.norm(
            self._epsilon, rows.data_ptr(), added, total, self._weight.data_ptr(), out.data_ptr(),
            *rows.shape, _is_half(rows),
        )  # fmt: skip


class _Layer:
    """Norm, attention, norm, gated network."""

    def __init__(self, layer: Any) -> None:
        attention, network = layer.self_attn, layer.mlp
        config, self.head = attention.config, attention.head_dim
        self.heads, self._kv = config.num_attention_heads, config.num_key_value_heads
        self.width = config.intermediate_size
        self.before, self.between = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self._project = _joined(attention, "qkv_proj", "q_proj", "k_proj", "v_proj")
        self._gates = _joined(network, "gate_up_proj", "gate_proj", "up_proj")
        self._out, self.down = _called(attention.o_proj), _called(network.down_proj)
        self.is_cut = isinstance(network.down_proj, PackedLinear) and network.down_proj.is_cut
        self._layer, self._scaling = int(attention.layer_idx), float(attention.scaling)
        where = config if type(layer).__name__.startswith("Mistral") else attention
        self._window = int(getattr(where, "sliding_window", None) or 0)
        self._norms: Tensor | None = None
        self._epsilon = 0.0
        if hasattr(attention, "q_norm"):
            weights = (
                attention.q_norm.weight.expand(self.heads, -1),
                attention.k_norm.weight.expand(self._kv, -1),
            )
            self._norms = torch.cat(weights).detach()
            self._epsilon = float(attention.q_norm.variance_epsilon)

    def room(self, rows: Tensor) -> _Room:
        """For what it and its like compute of so many rows; those that only fill up see nothing."""
        queries = rows.new_empty(len(rows), self.heads * self.head)
        return _Room(queries, torch.zeros_like(queries), rows.new_empty(len(rows), self.width))

    def turn(self, normed: Tensor, angles: tuple[Tensor, Tensor], places: Places, room: _Room) -> None:
        """Writes queries into `room`, and keys and values into the cache."""
        projected = self._project(normed)
        native.turn(
            self._epsilon, projected.data_ptr(), 0 if self._norms is None else self._norms.data_ptr(),
            angles[0].data_ptr(), angles[1].data_ptr(), room.queries.data_ptr(), *self._where(places),
            _is_half(normed),
        )  # fmt: skip

    def see(self, places: Places, room: _Room) -> None:
        """What the rows in these places attend to."""
        native.attend(
            self._scaling, room.queries.data_ptr(), room.seen.data_ptr(), *self._where(places),
            self._window, _is_half(room.seen),
        )  # fmt: skip

    def think(self, rows: Tensor, normed: Tensor, room: _Room) -> None:
        """Adds to `rows` [n, hidden] what was seen, and leaves in `room` what `down` has to project."""
        self.between(rows, self._out(room.seen), normed)
        gates = self._gates(normed)
        native.gate(gates.data_ptr(), room.gated.data_ptr(), len(rows), self.width, _is_half(rows))

    def _where(self, places: Places) -> tuple[int, ...]:
        keys, values = (slab[self._layer].data_ptr() for slab in (places.keys, places.values))
        return (
            keys, values, places.spans.data_ptr(), places.table.data_ptr(), len(places.spans),
            self.heads, self._kv, self.head, places.keys.stride(1),
        )  # fmt: skip


def _is_half(rows: Tensor) -> int:
    return int(rows.dtype is torch.bfloat16)


def _called(linear: nn.Module) -> Any:
    """Without the microsecond that hooks of a module take."""
    return linear.forward if isinstance(linear, PackedLinear) else linear


def _joined(parent: nn.Module, name: str, *parts: str) -> Any:
    """One projection of what several are; by themselves where they could not be joined."""
    if hasattr(parent, name):
        return _called(getattr(parent, name))
    layers = [getattr(parent, part) for part in parts]
    return lambda rows: torch.cat([layer(rows) for layer in layers], dim=-1)
