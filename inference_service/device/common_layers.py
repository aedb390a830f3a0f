"""The common layers of a decoder in torch, as two regions that are compiled once for all layers.

Attention and the writing of keys and values stand between them, so no region changes the cache.
"""

from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference_service.device.compiling import compiled
from inference_service.kernels.packed_linear import is_common


class Cache(Protocol):
    """Keys and values, each [layers, kv heads, rows, head size]."""

    keys: Tensor
    values: Tensor


class Layout(Protocol):
    """Places of a forward's rows in a cache, and what they attend to."""

    rows: Tensor

    @property
    def cache(self) -> Cache: ...

    def attend(self, queries: Tensor, layer: int, scaling: float | None, window: int | None) -> Tensor: ...


class CommonLayers:
    """The computation of a backbone of common layers, with the same results as its own modules."""

    @staticmethod
    def fit(backbone: PreTrainedModel) -> bool:
        """Return whether a backbone has only common layers, whose linear layers are plain `nn.Linear`."""
        layers = list(getattr(backbone, "layers", ()))
        return (
            bool(layers)
            and all(is_common(it) and _is_plain(it) for it in layers)
            and backbone.config.hidden_act == "silu"
            and 2 * len(backbone.rotary_emb.inv_freq) == layers[0].self_attn.head_dim
        )

    def __init__(self, backbone: Any) -> None:
        self._backbone = backbone
        self._layers = list(backbone.layers)
        self._project, self._finish_layer = compiled(_project), compiled(_finish_layer)

    def run(self, rows: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        """Return final-norm hidden states [n, hidden] of embeddings [n, hidden] at positions [n]."""
        cosines, sines = (it[0] for it in self._backbone.rotary_emb(rows[None], positions[None]))
        for number, layer in enumerate(self._layers):
            attention, network = layer.self_attn, layer.mlp
            norm, between = layer.input_layernorm, layer.post_attention_layernorm
            queries, keys, values = self._project(
                rows, cosines, sines, norm.weight, norm.variance_epsilon, attention.head_dim,
                *_weights(attention.q_proj), *_weights(attention.k_proj), *_weights(attention.v_proj),
                getattr(getattr(attention, "q_norm", None), "weight", None),
                getattr(getattr(attention, "k_norm", None), "weight", None),
            )  # fmt: skip
            layout.cache.keys[number].index_copy_(1, layout.rows, keys)
            layout.cache.values[number].index_copy_(1, layout.rows, values)
            seen = layout.attend(queries, number, float(attention.scaling), _window(layer))
            rows = self._finish_layer(
                rows, seen, *_weights(attention.o_proj), between.weight, between.variance_epsilon,
                *_weights(network.gate_proj), *_weights(network.up_proj), *_weights(network.down_proj),
            )  # fmt: skip
        normed: Tensor = self._backbone.norm(rows)
        return normed


def _is_plain(layer: Any) -> bool:
    attention, network = layer.self_attn, layer.mlp
    linears = [
        *(getattr(attention, name, None) for name in ("q_proj", "k_proj", "v_proj", "o_proj")),
        *(getattr(network, name, None) for name in ("gate_proj", "up_proj", "down_proj")),
    ]
    return all(type(it) is nn.Linear for it in linears)


def _weights(linear: nn.Linear) -> tuple[Tensor, Tensor | None]:
    return linear.weight, linear.bias


def _window(layer: Any) -> int | None:
    attention = layer.self_attn
    where = attention.config if type(layer).__name__.startswith("Mistral") else attention
    return getattr(where, "sliding_window", None) or None


def _project(
    rows: Tensor,
    cosines: Tensor,
    sines: Tensor,
    norm: Tensor,
    epsilon: float,
    head: int,
    query: Tensor,
    query_bias: Tensor | None,
    key: Tensor,
    key_bias: Tensor | None,
    value: Tensor,
    value_bias: Tensor | None,
    query_norm: Tensor | None,
    key_norm: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries [n, heads, head size], keys and values [kv heads, n, head size] of rows [n, hidden]."""
    normed = _normed(rows, norm, epsilon)
    queries, keys, values = (
        F.linear(normed, weight, bias).unflatten(1, (-1, head))
        for weight, bias in ((query, query_bias), (key, key_bias), (value, value_bias))
    )
    if query_norm is not None and key_norm is not None:
        queries, keys = _normed(queries, query_norm, epsilon), _normed(keys, key_norm, epsilon)
    queries, keys = (_rotated(it, cosines[:, None], sines[:, None]) for it in (queries, keys))
    return queries, keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous()


def _finish_layer(
    rows: Tensor,
    seen: Tensor,
    out: Tensor,
    out_bias: Tensor | None,
    norm: Tensor,
    epsilon: float,
    gate: Tensor,
    gate_bias: Tensor | None,
    up: Tensor,
    up_bias: Tensor | None,
    down: Tensor,
    down_bias: Tensor | None,
) -> Tensor:
    """Return rows [n, hidden] after the attention output [n, heads, head size] and the gated network."""
    rows = rows + F.linear(seen.flatten(1), out, out_bias)
    normed = _normed(rows, norm, epsilon)
    gated = F.silu(F.linear(normed, gate, gate_bias)) * F.linear(normed, up, up_bias)
    return rows + F.linear(gated, down, down_bias)


def _normed(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return weight * wide.to(rows.dtype)


def _rotated(rows: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = rows.chunk(2, dim=-1)
    return rows * cosines + torch.cat([-second, first], dim=-1) * sines
