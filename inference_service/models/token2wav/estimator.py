"""The estimator of the flow of mel frames at one time: a transformer with caches of earlier chunks.

Names of parameters are those of the published `flow.pt`.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference_service.models.token2wav.config import MELS, EstimatorConfig

_KERNEL = 3
_TIME_WIDTH = 256


class TimeEmbedder(nn.Module):
    """The embedding of a time between 0 and 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(_TIME_WIDTH, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, time: Tensor) -> Tensor:
        """Return embeddings [n, width] of `time`, float32 [n]."""
        half = _TIME_WIDTH // 2
        rates = torch.exp(
            -math.log(10_000) * torch.arange(half, dtype=torch.float32, device=time.device) / half
        )
        angles = 1000 * time[:, None] * rates
        waves = torch.cat([angles.cos(), angles.sin()], dim=1)
        embedded: Tensor = self.mlp(waves.to(next(self.mlp.parameters()).dtype))
        return embedded


class Attention(nn.Module):
    """Attention in which every frame attends to its whole chunk and to the cache."""

    def __init__(self, config: EstimatorConfig) -> None:
        super().__init__()
        self.heads = config.heads
        inner = config.heads * config.head_dim
        self.to_q = nn.Linear(config.width, inner)
        self.to_k = nn.Linear(config.width, inner)
        self.to_v = nn.Linear(config.width, inner)
        self.q_norm = nn.LayerNorm(config.head_dim)
        self.k_norm = nn.LayerNorm(config.head_dim)
        self.proj = nn.Linear(inner, config.width)

    def _split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, -1))
        return heads.transpose(1, 2)

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention output of `x` [batch, n, width], and its keys and values.

        `past` [2, batch, heads, t, head size] has earlier keys and values.
        """
        q = self.q_norm(self._split(self.to_q(x)))
        k = self.k_norm(self._split(self.to_k(x)))
        new = torch.stack([k, self._split(self.to_v(x))])
        keys, values = torch.cat([new, past.to(x.dtype)], dim=3)
        out = F.scaled_dot_product_attention(q, keys, values)
        return self.proj(out.transpose(1, 2).flatten(2)), new


class Mlp(nn.Module):
    """Two linear layers with a GELU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for `x` [..., width]."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return out


class CausalConvs(nn.Module):
    """Two causal convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.block = nn.ModuleDict(
            {
                "1": nn.Conv1d(width, width, _KERNEL),
                "3": nn.LayerNorm(width),
                "6": nn.Conv1d(width, width, _KERNEL),
            }
        )

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output for `x` [batch, n, width], of the same shape, and the new past.

        `past` [2, batch, width, 2] has the last inputs of each convolution.
        """
        past = past.to(x.dtype)
        first = torch.cat([past[0], x.transpose(1, 2)], dim=2)
        x = F.mish(self.block["3"](self.block["1"](first).transpose(1, 2)))
        second = torch.cat([past[1], x.transpose(1, 2)], dim=2)
        kept = torch.stack([first[:, :, 1 - _KERNEL :], second[:, :, 1 - _KERNEL :]])
        return self.block["6"](second).transpose(1, 2), kept


class Block(nn.Module):
    """Attention, convolutions and an MLP, each shifted, scaled and gated by the time."""

    def __init__(self, config: EstimatorConfig) -> None:
        super().__init__()
        width = config.width
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.attn = Attention(config)
        self.conv = CausalConvs(width)
        self.mlp = Mlp(width, int(width * config.mlp_ratio))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 9 * width))

    def forward(
        self, x: Tensor, time: Tensor, attention: Tensor, convolution: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output for `x` [batch, n, width] at `time` [1, width], and the new parts of both pasts.

        `attention` and `convolution` are the pasts that `Attention` and `CausalConvs` take.
        """
        by_attention, by_mlp, by_convolution = self.adaLN_modulation(time)[:, None].chunk(3, dim=-1)
        shift, scale, gate = by_attention.chunk(3, dim=-1)
        attended, attention = self.attn(self.norm(x) * (1 + scale) + shift, attention)
        x = x + gate * attended
        shift, scale, gate = by_convolution.chunk(3, dim=-1)
        convolved, convolution = self.conv(self.norm(x) * (1 + scale) + shift, convolution)
        x = x + gate * convolved
        shift, scale, gate = by_mlp.chunk(3, dim=-1)
        return x + gate * self.mlp(self.norm(x) * (1 + scale) + shift), attention, convolution


class FinalLayer(nn.Module):
    """The projection from the width back to mel bands."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.linear = nn.Linear(width, MELS)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return mel bands [batch, n, 80] of `x` [batch, n, width] at `time` [1, width]."""
        shift, scale = self.adaLN_modulation(time)[:, None].chunk(2, dim=-1)
        out: Tensor = self.linear(self.norm(x) * (1 + scale) + shift)
        return out


class Estimator(nn.Module):
    """One step of the flow for a chunk."""

    def __init__(self, config: EstimatorConfig) -> None:
        super().__init__()
        self.config = config
        self.t_embedder = TimeEmbedder(config.width)
        self.in_proj = nn.Linear(4 * MELS, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.final_layer = FinalLayer(config.width)

    def forward(
        self, x: Tensor, time: Tensor, attention: Tensor, convolution: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the flow [batch, n, 80] of `x` [batch, n, 320] at `time` [1], and the new caches.

        `attention` [depth, 2, batch, heads, t, head size] are keys and values of earlier chunks on input, and
        those of `x` on output; `convolution` [depth, 2, batch, width, 2].
        """
        moment = self.t_embedder(time)
        x = self.in_proj(x)
        attentions, convolutions = [], []
        for block, attended, convolved in zip(self.blocks, attention, convolution, strict=True):
            x, attended, convolved = block(x, moment, attended, convolved)
            attentions.append(attended)
            convolutions.append(convolved)
        return self.final_layer(x, moment), torch.stack(attentions), torch.stack(convolutions)
