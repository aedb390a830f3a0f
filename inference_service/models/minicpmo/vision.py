"""MiniCPM-o's eye: a SigLIP encoder for slices of any shape, and a resampler to a fixed number of embeddings.

Names of parameters are those of the published checkpoint (`vpm`, `resampler`).
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from inference_service.device.transfer import upload
from inference_service.models.minicpmo.config import VisionConfig
from inference_service.models.minicpmo.slices import PATCH, Patches

GRID = 70
"""Rows and columns of the table of positions."""
_HEAD = 128
"""Head size of the resampler."""
_ROUNDED = {(49, 28): 40, (49, 42): 59, (58, 29): 34}
"""Lines of the table of positions, by (number of patches of a side, index of the patch). These patches lie on
the border of two lines, and the recorded results of the published code round their fractions differently.
"""


class Embeddings(nn.Module):
    """Patches with position embeddings, by fractions of the picture's sides."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.patch_embedding = nn.Conv2d(3, config.width, PATCH, PATCH)
        self.position_embedding = nn.Embedding(GRID**2, config.width)
        self.mean, self.std = config.mean, config.std

    def forward(self, slices: Sequence[Patches]) -> tuple[list[Tensor], Tensor]:
        """Return [patches, width] of each slice, and the number of its patches, int64 [slices].

        All inputs are uploaded in one asynchronous copy.
        """
        weight = self.patch_embedding.weight
        counts = [len(it.pixels) for it in slices]
        places = [(buckets(it.rows)[:, None] * GRID + buckets(it.columns)).ravel() for it in slices]
        pixels, position, lengths, channels = upload(
            weight.device,
            np.concatenate([it.pixels.numpy() for it in slices]),
            np.concatenate(places),
            np.array(counts, np.int64),
            np.array([self.mean, self.std], np.float32),
        )
        mean, std = channels[:, :, None, None].unbind()
        about_zero = scaled(pixels, mean, std).to(weight.dtype)
        out = self.patch_embedding(about_zero).flatten(1) + self.position_embedding(position)
        return list(out.split(counts)), lengths


def scaled(pixels: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return uint8 [n, 3, 14, 14] as float32 about zero; `mean` and `std` are [3, 1, 1]."""
    return (pixels.float() / 255.0 - mean) / std


@lru_cache(maxsize=256)
def buckets(count: int) -> NDArray[np.int64]:
    """Return the line, out of 70, of each of `count` patches of a side; the array must not be modified."""
    fractions = (np.arange(count) * np.float64(np.float32(1 / count))).astype(np.float32)
    borders = np.arange(1, GRID, dtype=np.float32) / np.float32(GRID)
    lines = np.searchsorted(borders, fractions, side="right").astype(np.int64)
    for (of, patch), line in _ROUNDED.items():
        if of == count:
            lines[patch] = line
    return lines


class Attention(nn.Module):
    """Attention in which every patch attends to its whole slice."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        width = config.width
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the output for `x` [slices, patches, width] and `mask`, bool [slices, 1, 1, patches]."""
        q, k, v = (
            linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        projected: Tensor = self.out_proj(out.transpose(1, 2).flatten(2))
        return projected


class Mlp(nn.Module):
    """Two linear layers with a GELU between."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.width, config.inner)
        self.fc2 = nn.Linear(config.inner, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for `x` [..., width]: the same shape."""
        out: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return out


class Layer(nn.Module):
    """One layer of SigLIP."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.layer_norm2 = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp = Mlp(config)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the output for `x` [slices, patches, width] and `mask`, bool [slices, 1, 1, patches]."""
        x = x + self.self_attn(self.layer_norm1(x), mask)
        out: Tensor = x + self.mlp(self.layer_norm2(x))
        return out


class Layers(nn.Module):
    """Holds the layers under their published name."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))


class SiglipEncoder(nn.Module):
    """Slices to states of their patches."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.embeddings = Embeddings(config)
        self.encoder = Layers(config)
        self.post_layernorm = nn.LayerNorm(config.width, eps=config.norm_eps)

    def forward(self, slices: Sequence[Patches]) -> tuple[Tensor, Tensor]:
        """Return states [slices, most patches, width], and the mask of real patches, bool [slices, most
        patches].
        """
        embedded, lengths = self.embeddings(slices)
        x = nn.utils.rnn.pad_sequence(embedded, batch_first=True)
        present = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        for layer in self.encoder.layers:
            x = layer(x, present[:, None, None])
        return self.post_layernorm(x), present


class Resampler(nn.Module):
    """Learned queries that read the patches of a slice."""

    def __init__(self, config: VisionConfig, hidden: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(config.queries, hidden))
        self.kv_proj = nn.Linear(config.width, hidden, bias=False)
        self.attn = nn.MultiheadAttention(hidden, hidden // _HEAD, batch_first=True)
        self.ln_q = nn.LayerNorm(hidden, eps=1e-6)
        self.ln_kv = nn.LayerNorm(hidden, eps=1e-6)
        self.ln_post = nn.LayerNorm(hidden, eps=1e-6)
        self.proj = nn.Parameter(torch.zeros(hidden, hidden))

    def forward(self, states: Tensor, present: Tensor, slices: Sequence[Patches]) -> Tensor:
        """Return embeddings [slices, queries, hidden] of the encoder's states."""
        x = self.ln_kv(self.kv_proj(states))
        places = [grid_positions(it.rows, it.columns, x.shape[2], x.device).to(x.dtype) for it in slices]
        positions = nn.utils.rnn.pad_sequence(places, batch_first=True)
        query = self.ln_q(self.query).expand(len(x), -1, -1)
        out, _ = self.attn(query, x + positions, x, key_padding_mask=~present, need_weights=False)
        embedded: Tensor = self.ln_post(out) @ self.proj
        return embedded


def grid_positions(rows: int, columns: int, width: int, device: torch.device) -> Tensor:
    """Return sinusoids [rows * columns, width]: of the column in the first half, of the row in the second."""
    across = _sinusoids(columns, width // 2, device)[None].expand(rows, -1, -1)
    down = _sinusoids(rows, width // 2, device)[:, None].expand(-1, columns, -1)
    return torch.cat([across, down], dim=2).flatten(0, 1)


def _sinusoids(count: int, width: int, device: torch.device) -> Tensor:
    """Return float32 [count, width]: sines, then cosines."""
    rates = 1.0 / 10_000 ** (torch.arange(width // 2, dtype=torch.float32, device=device) / (width // 2))
    angles = torch.arange(count, dtype=torch.float32, device=device)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Eye:
    """Encoder and resampler of a model: a fixed number of embeddings for each slice."""

    def __init__(self, config: VisionConfig, encoder: SiglipEncoder, resampler: Resampler) -> None:
        self.config = config
        self.encoder = encoder
        self.resampler = resampler

    def see(self, slices: list[Patches]) -> list[Tensor]:
        """Return embeddings [queries, hidden] of each slice."""
        seen: list[Tensor] = []
        for begin in range(0, len(slices), self.config.slices_at_once):
            batch = slices[begin : begin + self.config.slices_at_once]
            seen += self.resampler(*self.encoder(batch), batch)
        return seen
