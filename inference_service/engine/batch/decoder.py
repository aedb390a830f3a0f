"""A transformers decoder that runs rows of many sessions in one forward.

Its rows are packed: each session's queries see its own slot of the KV cache and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from inference_service.engine.batch.attention import NAME, PackedLayout, Span
from inference_service.engine.batch.kvcache import KVCache


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
        config = backbone.config
        self._groups = config.num_attention_heads // config.num_key_value_heads
        self.in_parts = parameter.device.type == "cpu"
        """Whether a long context that does not lie in one run is seen run by run, or gathered."""
        self.cache = KVCache(config, slots, capacity, parameter.dtype, parameter.device)

    def forward(self, segments: list[Segment]) -> list[Tensor]:
        """Final-norm hidden states [n, hidden] of each segment, in order."""
        layout = self.layout(segments)
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
        return list(hidden.split(layout.counts))

    def layout(self, segments: list[Segment]) -> PackedLayout:
        """Where these rows will be; there is room for them then."""
        spans = [Span(segment.slot, segment.start, len(segment.embeds)) for segment in segments]
        for span in spans:
            self.cache.reserve(span.slot, span.start, span.end)
        return PackedLayout(self.cache, spans, self._groups, in_parts=self.in_parts)

    def rotate(self, keys: Tensor, offset: int) -> Tensor:
        """Keys [..., n, head size] in float32 as they would be `offset` positions later."""
        position = torch.tensor([[offset]], device=keys.device)
        cos, sin = self.backbone.rotary_emb(keys, position)
        first, second = keys.chunk(2, dim=-1)
        turned: Tensor = keys * cos[0] + torch.cat([-second, first], dim=-1) * sin[0]
        return turned
