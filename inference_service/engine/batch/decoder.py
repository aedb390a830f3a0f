"""A transformers decoder that runs rows of many sessions in one forward.

Its rows are packed: each session's queries see its own slot of the KV cache and nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference_service.engine.batch.attention import NAME, PackedLayout, Span, attend
from inference_service.engine.batch.kvcache import KVCache
from inference_service.engine.device.rows import Rows
from inference_service.engine.device.transfer import Array, upload
from inference_service.models.packed_linear import is_common


@dataclass(frozen=True)
class Segment:
    """New rows of one session, their first cache index and first position."""

    slot: int
    start: int
    position: int
    rows: Rows


class PackedDecoder:
    """Any decoder-only backbone (`Qwen3Model`, `LlamaModel`, ...) over a `KVCache`.

    `conditions` are further arguments of its layers, the same for all sessions.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        slots: int,
        capacity: int,
        conditions: Mapping[str, Tensor] | None = None,
        embeddings: nn.Module | None = None,
    ) -> None:
        """`embeddings` are those of ids; of a decoder without them all rows are made of media."""
        parameter = next(backbone.parameters())
        self.backbone = backbone
        self._embeddings = embeddings
        self.backbone.set_attn_implementation(NAME)
        self._conditions = dict(conditions or {})
        config = backbone.config
        is_short = parameter.device.type == "cpu" and not self._conditions and Way.fits(backbone)
        self._way = Way(backbone) if is_short else None
        self._groups = config.num_attention_heads // config.num_key_value_heads
        self.in_parts = parameter.device.type == "cpu"
        """Whether a long context that does not lie in one run is seen run by run, or gathered."""
        self.cache = KVCache(config, slots, capacity, parameter.dtype, parameter.device)

    def forward(self, segments: list[Segment]) -> list[Tensor]:
        """Final-norm hidden states [n, hidden] of each segment, in order."""
        hidden, _ = self.run(segments)
        return list(hidden.split([len(segment.rows) for segment in segments]))

    def run(self, segments: list[Segment], *others: Array) -> tuple[Tensor, list[Tensor]]:
        """Final-norm hidden states [rows, hidden]; and `others` on the device, which go up with the rows."""
        layout = self.layout(segments)
        rows = Rows.join([segment.rows for segment in segments])
        positions = np.concatenate(
            [np.arange(s.position, s.position + len(s.rows), dtype=np.int64) for s in segments]
        )
        made_at = np.flatnonzero(rows.is_made)
        layout.rows, positions_there, ids, made_there, *others_there = upload(
            self.cache.device, layout.cells, positions, rows.ids, made_at, *others
        )
        embeds = self._embedded(rows, ids, made_there)
        if self._way is not None:
            return self._way.run(embeds, positions_there, layout), others_there
        hidden: Tensor = self.backbone(
            inputs_embeds=embeds[None],
            position_ids=positions_there[None],
            attention_mask={"full_attention": None, "sliding_attention": None},
            use_cache=False,
            packed=layout,
            **self._conditions,
        ).last_hidden_state[0]
        return hidden, others_there

    def embed(self, rows: Rows) -> Tensor:
        """Embeddings [n, hidden] of rows."""
        return self._embedded(rows, *upload(self.cache.device, rows.ids, np.flatnonzero(rows.is_made)))

    def _embedded(self, rows: Rows, ids: Tensor, made_at: Tensor) -> Tensor:
        """Embeddings [n, hidden] of rows whose ids, and the places of made ones, are on the device."""
        if rows.made is not None and (rows.ids < 0).all():
            return rows.made
        assert self._embeddings is not None
        if rows.made is None:
            embedded: Tensor = self._embeddings(ids)
            return embedded
        embedded = self._embeddings(ids.clamp(min=0)).masked_fill((ids < 0)[:, None], 0)
        return embedded.index_add(0, made_at, rows.made)

    def layout(self, segments: list[Segment]) -> PackedLayout:
        """Where these rows will be; there is room for them then."""
        spans = [Span(segment.slot, segment.start, len(segment.rows)) for segment in segments]
        for span in spans:
            self.cache.reserve(span.slot, span.start, span.end)
        return PackedLayout(self.cache, spans, self._groups, in_parts=self.in_parts)

    def rotate(self, keys: Tensor, offset: int) -> Tensor:
        """Keys [..., n, head size] in float32 as they would be `offset` positions later."""
        position = torch.full((1, 1), offset, device=keys.device)
        cos, sin = self.backbone.rotary_emb(keys, position)
        first, second = keys.chunk(2, dim=-1)
        turned: Tensor = keys * cos[0] + torch.cat([-second, first], dim=-1) * sin[0]
        return turned


class Way:
    """The same way through a backbone of common layers in fewer steps: on the CPU each costs microseconds.

    See `is_common`. Projections that are joined are computed together.
    """

    @staticmethod
    def fits(backbone: PreTrainedModel) -> bool:
        """Whether there is nothing else in its layers."""
        layers = list(getattr(backbone, "layers", ()))
        return bool(layers) and all(is_common(it) for it in layers)

    def __init__(self, backbone: PreTrainedModel) -> None:
        self._rotary: Any = backbone.rotary_emb
        self._layers = [_Layer(it) for it in backbone.layers]
        self._norm = _Norm(backbone.norm)

    def run(self, rows: Tensor, positions: Tensor, layout: PackedLayout) -> Tensor:
        """Final-norm hidden states of embeddings [n, hidden] at positions [n]."""
        cos, sin = (it[0].unsqueeze(1) for it in self._rotary(rows[None], positions[None]))
        half = sin.shape[-1] // 2
        turn = cos, torch.cat([-sin[..., :half], sin[..., half:]], dim=-1)
        for layer in self._layers:
            rows = layer.run(rows, turn, layout)
        return self._norm(rows)


class _Norm:
    """Of the root of mean squares, in float32."""

    def __init__(self, norm: Any) -> None:
        self._weight, self._epsilon = norm.weight, norm.variance_epsilon

    def __call__(self, rows: Tensor) -> Tensor:
        normed: Tensor = F.rms_norm(rows, rows.shape[-1:], None, self._epsilon) * self._weight
        return normed


class _Layer:
    """Norm, attention, norm, gated network."""

    def __init__(self, layer: Any) -> None:
        attention, network = layer.self_attn, layer.mlp
        config, self._head = attention.config, attention.head_dim
        self._heads, self._kv = config.num_attention_heads, config.num_key_value_heads
        self._before, self._between = _Norm(layer.input_layernorm), _Norm(layer.post_attention_layernorm)
        self._projections = _joined(attention, "qkv_proj", "q_proj", "k_proj", "v_proj")
        self._gates = _joined(network, "gate_up_proj", "gate_proj", "up_proj")
        self._out, self._down, self._act = attention.o_proj, network.down_proj, network.act_fn
        self._layer, self._scaling = int(attention.layer_idx), attention.scaling
        where = config if type(layer).__name__.startswith("Mistral") else attention
        self._window: int | None = getattr(where, "sliding_window", None)
        self._norms: tuple[Tensor, float] | None = None
        if hasattr(attention, "q_norm"):
            weights = (
                attention.q_norm.weight.expand(self._heads, -1),
                attention.k_norm.weight.expand(self._kv, -1),
            )
            self._norms = torch.cat(weights).detach(), attention.q_norm.variance_epsilon

    def run(self, rows: Tensor, turn: tuple[Tensor, Tensor], layout: PackedLayout) -> Tensor:
        """`rows` [n, hidden] after this layer; see `_turned`."""
        projected = self._projections(self._before(rows)).view(len(rows), -1, self._head)
        both, value = projected.split((self._heads + self._kv, self._kv), dim=1)
        if self._norms is not None:
            weight, epsilon = self._norms
            both = F.rms_norm(both, (self._head,), None, epsilon) * weight
        query, key = _turned(both, turn).split((self._heads, self._kv), dim=1)
        seen = attend(layout, self._layer, query, key, value, self._scaling, self._window)
        rows = rows + self._out(seen.flatten(1))
        gate, up = self._gates(self._between(rows)).chunk(2, dim=-1)
        after: Tensor = rows + self._down(self._act(gate) * up)
        return after


def _turned(heads: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Heads [n, heads, head size] by their positions: cosines and, with signs, sines [n, 1, head size]."""
    cos, sin = turn
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)


def _joined(parent: nn.Module, name: str, *parts: str) -> Callable[[Tensor], Tensor]:
    """One projection of what several are; by themselves where they could not be joined."""
    if hasattr(parent, name):
        whole: Callable[[Tensor], Tensor] = getattr(parent, name)
        return whole
    layers = [getattr(parent, part) for part in parts]
    return lambda rows: torch.cat([layer(rows) for layer in layers], dim=-1)
