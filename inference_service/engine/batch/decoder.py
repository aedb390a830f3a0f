"""A transformers decoder that runs rows of many sessions in one forward.

Its rows are packed: each session's queries see its own slot of the KV cache and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from inference_service.engine.batch.kvcache import KVCache

NAME = "antiphon_packed"
_UNKNOWN = ("softcap", "s_aux")
"""What changes the scores in the layers of some models."""


@dataclass(frozen=True)
class Span:
    """`count` consecutive rows of a packed batch that belong to one slot and start at cache index `start`."""

    slot: int
    row: int
    start: int
    count: int

    @property
    def end(self) -> int:
        """Length of the slot's cache once these rows are in it."""
        return self.start + self.count


class PackedLayout:
    """Where the rows of one packed forward live in the cache."""

    def __init__(self, cache: KVCache, spans: list[Span]) -> None:
        self.cache = cache
        self.spans = spans
        device = cache.keys[0].device
        self.slots = torch.tensor([s.slot for s in spans for _ in range(s.count)], device=device)
        self.indices = torch.cat([torch.arange(s.start, s.end, device=device) for s in spans])
        self._masks: dict[tuple[int, int, int | None], Tensor] = {}

    def mask(self, span: Span, first: int, window: int | None) -> Tensor:
        """Which of the keys from index `first` on each row of `span` sees, bool [count, end - first].

        A row sees itself and what came before it; within a `window`, the last `window` of these.
        """
        key = (span.count, span.end, window)
        if key not in self._masks:
            keys = torch.arange(first, span.end, device=self.slots.device)[None]
            rows = torch.arange(span.start, span.end, device=self.slots.device)[:, None]
            seen = keys <= rows
            self._masks[key] = seen if window is None else seen & (keys > rows - window)
        return self._masks[key]


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
    keys, values = packed.cache.keys[layer], packed.cache.values[layer]
    keys[packed.slots, :, packed.indices] = key[0].transpose(0, 1)
    values[packed.slots, :, packed.indices] = value[0].transpose(0, 1)
    heads, head = query.shape[1], query.shape[3]
    outputs = []
    for span in packed.spans:
        first = 0 if sliding_window is None else max(0, span.start + 1 - sliding_window)
        q = query[:, :, span.row : span.row + span.count]
        k = keys[span.slot : span.slot + 1, :, first : span.end]
        v = values[span.slot : span.slot + 1, :, first : span.end]
        if span.count == 1:
            # One query: the heads that share a key become the rows of one small attention.
            grouped = q.reshape(1, k.shape[1], heads // k.shape[1], head)
            out = F.scaled_dot_product_attention(grouped, k, v, scale=scaling).reshape(1, heads, 1, head)
        else:
            mask = packed.mask(span, first, sliding_window)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=True)
        outputs.append(out)
    return torch.cat(outputs, dim=2).transpose(1, 2), None


AttentionInterface.register(NAME, packed_attention)


@dataclass(frozen=True)
class Segment:
    """New rows of one session: embeddings [n, hidden], their first cache index and first position."""

    slot: int
    start: int
    position: int
    embeds: Tensor


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
    ) -> None:
        parameter = next(backbone.parameters())
        self.backbone = backbone
        self.backbone.set_attn_implementation(NAME)
        self._conditions = dict(conditions or {})
        self.cache = KVCache(backbone.config, slots, capacity, parameter.dtype, parameter.device)

    def forward(self, segments: list[Segment]) -> list[Tensor]:
        """Final-norm hidden states [n, hidden] of each segment, in order."""
        spans, row = [], 0
        for segment in segments:
            spans.append(Span(segment.slot, row, segment.start, len(segment.embeds)))
            row += len(segment.embeds)
        layout = PackedLayout(self.cache, spans)
        positions = torch.cat(
            [torch.arange(s.position, s.position + len(s.embeds), device=s.embeds.device) for s in segments]
        )
        hidden = self.backbone(
            inputs_embeds=torch.cat([segment.embeds for segment in segments])[None],
            position_ids=positions[None],
            attention_mask={"full_attention": None, "sliding_attention": None},
            use_cache=False,
            packed=layout,
            **self._conditions,
        ).last_hidden_state[0]
        return list(hidden.split([span.count for span in spans]))

    def rotate(self, keys: Tensor, offset: int) -> Tensor:
        """Keys [kv heads, n, head size] as they would be `offset` positions later."""
        position = torch.tensor([[offset]], device=keys.device)
        cos, sin = self.backbone.rotary_emb(keys.float(), position)
        first, second = keys.float().chunk(2, dim=-1)
        turned: Tensor = keys.float() * cos[0] + torch.cat([-second, first], dim=-1) * sin[0]
        return turned
