"""The conformer from speech tokens to the mean of mel frames, chunk by chunk.

Names of parameters are those of the published `flow.pt`. A chunk attends to itself and to all kept frames of
earlier chunks. Later tokens are only its look-ahead.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference_service.models.token2wav.config import LOOK_AHEAD, EncoderConfig

_UP = 2
CONV2_PAST = 2
UP_PAST = 4


@dataclass(frozen=True)
class EncoderState:
    """The state of a stream.

    `look` [width, 2] and `up` [width, 4] are pasts of convolutions; `first` [blocks, 2, heads, time, head
    size] and `second` (twice the time) are keys and values, oldest first.
    """

    look: Tensor
    up: Tensor
    first: Tensor
    second: Tensor


class RelativeAttention(nn.Module):
    """Attention with relative positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.linear_q = nn.Linear(width, width)
        self.linear_k = nn.Linear(width, width)
        self.linear_v = nn.Linear(width, width)
        self.linear_out = nn.Linear(width, width)
        self.linear_pos = nn.Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, width // heads))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, width // heads))

    def _split(self, x: Tensor) -> Tensor:
        heads: Tensor = x.unflatten(-1, (self.heads, -1))
        return heads.transpose(-2, -3)

    def forward(self, x: Tensor, past: Tensor, distances: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention output, of the shape of `x` [batch, n, width], and the new past.

        `past` [2, batch, heads, t, head size] has keys and values; the new past has n more.
        `distances` [n + t + n - 1, width] are sinusoids, of the largest distance first.
        """
        q, k, v = (self._split(linear(x)) for linear in (self.linear_q, self.linear_k, self.linear_v))
        kept = torch.cat([past, torch.stack([k, v])], dim=3)
        keys, values = kept[0], kept[1]
        n, t = x.shape[1], keys.shape[2]
        near = (q + self.pos_bias_u[:, None]) @ keys.transpose(-1, -2)
        far = (q + self.pos_bias_v[:, None]) @ self._split(self.linear_pos(distances)).transpose(-1, -2)
        # The distances of query i begin at column n - 1 - i.
        rows = torch.arange(n, device=x.device)[:, None]
        columns = torch.arange(t, device=x.device)[None] + (n - 1 - rows)
        far = far.gather(-1, columns.expand(*far.shape[:2], n, t))
        weights = ((near + far) / math.sqrt(q.shape[-1])).softmax(-1)
        return self.linear_out((weights @ values).transpose(1, 2).flatten(2)), kept


class FeedForward(nn.Module):
    """Two linear layers with a SiLU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w_1 = nn.Linear(width, hidden)
        self.w_2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for `x` [..., width]."""
        out: Tensor = self.w_2(F.silu(self.w_1(x)))
        return out


class Block(nn.Module):
    """Attention and a feed-forward layer, each on a norm and with a residual."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(config.width, config.heads)
        self.feed_forward = FeedForward(config.width, config.feed_forward)
        self.norm_mha = nn.LayerNorm(config.width, eps=1e-12)
        self.norm_ff = nn.LayerNorm(config.width, eps=1e-12)

    def forward(self, x: Tensor, past: Tensor, distances: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output and the new past, with the arguments of `RelativeAttention`."""
        attended, past = self.self_attn(self.norm_mha(x), past, distances)
        x = x + attended
        return x + self.feed_forward(self.norm_ff(x)), past


class Embed(nn.Module):
    """A linear layer and a norm, scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width, eps=1e-5))

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for `x` [..., width]."""
        out: Tensor = self.out(x)
        return out * math.sqrt(x.shape[-1])


class LookAhead(nn.Module):
    """Convolutions that read `LOOK_AHEAD` later tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, LOOK_AHEAD + 1)
        self.conv2 = nn.Conv1d(width, width, CONV2_PAST + 1)

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows [batch, n, width] of `x` [batch, n + 3, width], and the new past.

        `past` is [batch, width, 2].
        """
        ahead = F.leaky_relu(self.conv1(x.transpose(1, 2)))
        ahead = torch.cat([past, ahead], dim=2)
        out = self.conv2(ahead).transpose(1, 2) + x[:, : x.shape[1] - LOOK_AHEAD]
        return out, ahead[:, :, -CONV2_PAST:]


class Upsample(nn.Module):
    """Repeats each frame, and smooths the result by a convolution."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, UP_PAST + 1)

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows [batch, 2 n, width] of `x` [batch, n, width], and the new past.

        `past` is [batch, width, 4].
        """
        x = torch.cat([past, x.transpose(1, 2).repeat_interleave(_UP, dim=2)], dim=2)
        return self.conv(x).transpose(1, 2), x[:, :, -UP_PAST:]


class Encoder(nn.Module):
    """The conformer encoder: two frames of `width` for each embedded token."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embed(config.width)
        self.pre_lookahead_layer = LookAhead(config.width)
        self.encoders = nn.ModuleList(Block(config) for _ in range(config.blocks))
        self.up_layer = Upsample(config.width)
        self.up_embed = Embed(config.width)
        self.up_encoders = nn.ModuleList(Block(config) for _ in range(config.up_blocks))
        self.after_norm = nn.LayerNorm(config.width, eps=1e-5)

    def initial_state(self) -> EncoderState:
        """Return the state of a new stream."""
        config, like = self.config, self.after_norm.weight
        empty = (2, config.heads, 0, config.width // config.heads)
        return EncoderState(
            like.new_zeros(config.width, CONV2_PAST),
            like.new_zeros(config.width, UP_PAST),
            like.new_zeros(config.blocks, *empty),
            like.new_zeros(config.up_blocks, *empty),
        )

    def forward(
        self, tokens: Tensor, states: list[EncoderState], *, is_last: bool
    ) -> tuple[Tensor, list[EncoderState]]:
        """Return frames [batch, 2 n, width] of embedded tokens, and new states.

        `tokens` are [batch, n + 3, width], or [batch, n, width] if they are the last.
        """
        x = self.embed(tokens)
        if is_last:
            x = F.pad(x, (0, 0, 0, LOOK_AHEAD))
        x, look = self.pre_lookahead_layer(x, torch.stack([state.look for state in states]))
        x, first = self._run(self.encoders, x, torch.stack([state.first for state in states], dim=2))
        x, up = self.up_layer(x, torch.stack([state.up for state in states]))
        x = self.up_embed(x)
        x, second = self._run(self.up_encoders, x, torch.stack([state.second for state in states], dim=2))
        rows = zip(look, up, first.unbind(2), second.unbind(2), strict=True)
        return self.after_norm(x), [EncoderState(*(part.clone() for part in row)) for row in rows]

    def _run(self, blocks: nn.ModuleList, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        distances = sinusoids(x.shape[1], past.shape[4], x.shape[2], x.device).to(x.dtype)
        kept = []
        for block, block_past in zip(blocks, past, strict=True):
            x, new = block(x, block_past, distances)
            kept.append(new)
        return x, torch.stack(kept)


def sinusoids(new: int, past: int, width: int, device: torch.device) -> Tensor:
    """Return sinusoids of distances, float32 [distances, width].

    Distances go from `past + new - 1` (from the last query to the oldest key) down to `1 - new`.
    """
    distances = torch.arange(past + new - 1, -new, -1, dtype=torch.float32, device=device)[:, None]
    channels = torch.arange(0, width, 2, dtype=torch.float32, device=device)
    angles = distances * torch.exp(channels * -(math.log(10_000.0) / width))
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)
