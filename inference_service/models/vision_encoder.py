"""A small vision encoder: one picture in, a few language-model embeddings out.

Named as in MiniCPM-o: `vpm` turns a picture into a grid of states, `resampler` lets a fixed number of
learned queries read the grid. A picture is one slice here; an encoder that cuts large pictures into
several gives one entry of embeddings for each.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference_service.models.config import VisionConfig

_STRIDES = (2, 2, 2, 1, 1)


class VisionEncoder(nn.Module):
    """Turns RGB pictures into a grid of states, an eighth of the picture's side wide and high."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        widths = (3, config.hidden // 4, config.hidden // 2, *[config.hidden] * (len(_STRIDES) - 2))
        self.convs = nn.ModuleList(
            nn.Conv2d(widths[i], widths[i + 1], 5 if i == 0 else 3, stride, 2 if i == 0 else 1)
            for i, stride in enumerate(_STRIDES)
        )
        self.post_layernorm = nn.LayerNorm(config.hidden)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return states [pictures, (side / 8) ** 2, hidden] of `pixels`, uint8 [pictures, side, side, 3]."""
        x = pixels.permute(0, 3, 1, 2).to(self.post_layernorm.weight.dtype) / 127.5 - 1
        for conv in self.convs:
            out = F.gelu(conv(x))
            x = x + out if out.shape == x.shape else out
        states: Tensor = self.post_layernorm(x.flatten(2).transpose(1, 2))
        return states


class Resampler(nn.Module):
    """Learned queries that attend to the grid of a picture."""

    def __init__(self, config: VisionConfig, output: int) -> None:
        super().__init__()
        hidden = config.hidden
        self.query = nn.Parameter(torch.randn(config.queries, hidden) * 0.02)
        self.pos_embed = nn.Parameter(torch.randn((config.image_size // 8) ** 2, hidden) * 0.02)
        self.attn = nn.MultiheadAttention(hidden, num_heads=4, batch_first=True)
        self.ln_post = nn.LayerNorm(hidden)
        self.proj = nn.Linear(hidden, output)

    def forward(self, states: Tensor) -> Tensor:
        """Return embeddings [pictures, queries, output] of `states` [pictures, grid, hidden]."""
        query = self.query.expand(len(states), -1, -1)
        read, _ = self.attn(query, states + self.pos_embed, states, need_weights=False)
        embedded: Tensor = self.proj(self.ln_post(read))
        return embedded
