"""The depth transformer: the codes of one frame in sequence, each with its own weights.

It computes what transformers' `MoshiDepthDecoder` does, one code at a time for a batch of frames. Its weights
are linear layers of each code, so that no step copies a weight. On the CPU `PackedLinear` can replace them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.moshi.modeling_moshi import MoshiDepthDecoder

Keys = tuple[Tensor, Tensor]
"""Keys and values of a layer, [n, heads, codes so far, head size]."""
Past = list[Keys]
"""Keys and values of all layers."""


class DepthLayer(nn.Module):
    """One layer with the weights of one code."""

    def __init__(self, network: MoshiDepthDecoder, layer: int, code: int) -> None:
        super().__init__()
        source = network.layers[layer]
        attention = source.self_attn
        self.heads = int(attention.num_heads)
        self.norm = source.input_layernorm
        self.between = source.post_attention_layernorm
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        self.qkv = _linear(torch.cat([it.linear.weight[code] for it in projections]))
        self.out = _linear(attention.o_proj.linear.weight[code])
        self.gate_up = _linear(source.mlp.fc1.weight[code])
        self.down = _linear(source.mlp.fc2.weight[code])

    def forward(self, rows: Tensor, past: Keys | None) -> tuple[Tensor, Keys]:
        """Return rows [n, hidden] of this code, and keys and values of this and all earlier codes."""
        queries, keys, values = (
            it.unflatten(1, (self.heads, 1, -1)) for it in self.qkv(self.norm(rows)).chunk(3, dim=1)
        )
        if past is not None:
            keys, values = torch.cat([past[0], keys], dim=2), torch.cat([past[1], values], dim=2)
        seen = F.scaled_dot_product_attention(queries, keys, values)
        rows = rows + self.out(seen.flatten(1))
        gate, up = self.gate_up(self.between(rows)).chunk(2, dim=1)
        return rows + self.down(F.silu(gate) * up), (keys, values)


class DepthStep(nn.Module):
    """The computation of one code."""

    def __init__(self, network: MoshiDepthDecoder, code: int) -> None:
        super().__init__()
        self.embeddings = network.embed_tokens[code - 1] if code else network.text_embed_tokens
        self.projection = _linear(network.input_projections.weight[code])
        layers = range(network.config.num_hidden_layers)
        self.layers = nn.ModuleList(DepthLayer(network, layer, code) for layer in layers)
        self.head = _linear(network.lm_heads.weight[code])

    def forward(self, hidden: Tensor, before: Tensor, past: Past) -> tuple[Tensor, Past]:
        """Return float32 scores [n, codes] after the token `before` [n]; `hidden` [n, hidden] belongs to the
        frames.
        """
        rows = self.projection(hidden) + self.embeddings(before)
        after: Past = []
        for number, layer in enumerate(self.layers):
            rows, state = layer(rows, past[number] if past else None)
            after.append(state)
        return self.head(rows).float(), after


class DepthTransformer(nn.Module):
    """The steps of all codes of the model's own stream."""

    def __init__(self, network: MoshiDepthDecoder, codes: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(DepthStep(network, code) for code in range(codes))

    @property
    def codes(self) -> int:
        """Codes of a frame."""
        return len(self.steps)


def _linear(weight: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight.detach(), requires_grad=False)
    return linear
