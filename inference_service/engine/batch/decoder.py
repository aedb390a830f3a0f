"""A transformers decoder that runs rows of many sessions in one forward.

Its rows are packed: each session's queries see its own slot of the KV cache and nothing else.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference_service.engine.batch.attention import NAME, PackedLayout, Span
from inference_service.engine.batch.kvcache import KVCache
from inference_service.engine.device.rows import Rows
from inference_service.engine.device.transfer import Array, upload


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
        hidden: Tensor = self.backbone(
            inputs_embeds=self._embedded(rows, ids, made_there)[None],
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
