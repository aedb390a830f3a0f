"""A small causal audio encoder: log-mel in, ten language-model embeddings per second out.

It has the rate and the interface of a streaming Whisper encoder: the state of a stream is an explicit list of
tensors, and a batch of streams is encoded in one call. There is no look-ahead, so chunks of any even
number of frames give the same output as the whole stream. Channels are the last dimension in all layers.
"""

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference_service.media.mel import BANDS
from inference_service.models.config import AudioConfig

AudioState = list[Tensor]
"""Left context of each convolution: tensors [kernel - stride, channels] of one stream."""
_TOGETHER = 5
"""Limit of streams in one pass: the arrays of more do not fit into the processor's cache."""


class CausalConv(nn.Conv1d):
    """A causal convolution, which reads `kernel - stride` past steps and no future ones."""

    @property
    def past(self) -> int:
        """Input steps kept from one chunk to the next."""
        return self.kernel_size[0] - self.stride[0]

    def advance(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return output and new past for `x` [batch, time, channels] after `past` [batch, self.past,
        channels].
        """
        x = torch.cat([past, x], dim=1)
        # As a picture of height 1, the input needs no copy with another order of channels.
        line = x.transpose(1, 2).unsqueeze(2)
        stride = (1, self.stride[0])
        mixed = F.conv2d(line, self.weight.unsqueeze(2), self.bias, stride, groups=self.groups)
        return mixed.squeeze(2).transpose(1, 2), x[:, x.shape[1] - self.past :]


class ConvBlock(nn.Module):
    """Depthwise causal convolution, then a two-layer perceptron, with a residual."""

    def __init__(self, hidden: int, kernel: int, expansion: int) -> None:
        super().__init__()
        self.mix = CausalConv(hidden, hidden, kernel, groups=hidden)
        self.norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, hidden * expansion)
        self.down = nn.Linear(hidden * expansion, hidden)

    def advance(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor]:
        """Return output of the shape of `x` [batch, time, hidden], and the new past of the convolution."""
        mixed, past = self.mix.advance(x, past)
        return x + self.down(F.gelu(self.up(self.norm(mixed)))), past


class AudioEncoder(nn.Module):
    """A causal encoder: log-mel frames at 100 Hz, states at 50 Hz, embeddings at 50 / pool Hz."""

    def __init__(self, config: AudioConfig, output: int) -> None:
        super().__init__()
        self.config = config
        self.conv1 = CausalConv(BANDS, config.hidden, 3)
        self.conv2 = CausalConv(config.hidden, config.hidden, 4, stride=2)
        self.blocks = nn.ModuleList(
            ConvBlock(config.hidden, config.kernel, config.expansion) for _ in range(config.blocks)
        )
        self.norm = nn.LayerNorm(config.hidden)
        self.project = nn.Sequential(
            nn.Linear(config.hidden * config.pool, output), nn.GELU(), nn.Linear(output, output)
        )

    @property
    def _stack(self) -> list[ConvBlock]:
        return cast(list[ConvBlock], list(self.blocks))

    def initial_state(self) -> AudioState:
        """Return the state of a new stream."""
        convs = [self.conv1, self.conv2, *(block.mix for block in self._stack)]
        return [torch.zeros(conv.past, conv.in_channels, device=conv.weight.device) for conv in convs]

    def advance(self, mel: Tensor, past: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return states [batch, frames / 2, hidden] and the new past for `mel` [batch, frames, 80], frames
        even.
        """
        x, first = self.conv1.advance(mel, past[0])
        x, second = self.conv2.advance(F.gelu(x), past[1])
        x = F.gelu(x)
        new = [first, second]
        for block, block_past in zip(self._stack, past[2:], strict=True):
            x, kept = block.advance(x, block_past)
            new.append(kept)
        return self.norm(x), new

    def embed(self, states: Tensor) -> Tensor:
        """Pool every `pool` states [batch, time, hidden] into one embedding, [batch, time // pool,
        output]."""
        batch, time, hidden = states.shape
        pool = self.config.pool
        pooled = states[:, : time // pool * pool].reshape(batch, time // pool, hidden * pool)
        embedded: Tensor = self.project(pooled)
        return embedded

    def encode(self, mels: list[Tensor], states: list[AudioState]) -> tuple[list[Tensor], list[AudioState]]:
        """Encode one chunk of each stream, [frames, 80] with frames a multiple of 2 * pool and equal for all.

        Returns embeddings [frames / (2 * pool), output] and new states, in the order given.
        """
        embedded: list[Tensor] = []
        after: list[AudioState] = []
        for begin in range(0, len(mels), _TOGETHER):
            group = slice(begin, begin + _TOGETHER)
            past = [torch.stack(layer) for layer in zip(*states[group], strict=True)]
            hidden, new = self.advance(torch.stack(mels[group]), past)
            embedded += self.embed(hidden)
            after += map(list, zip(*(layer.unbind() for layer in new), strict=True))
        return embedded, after

    def hear(self, mel: Tensor) -> Tensor:
        """Return states [batch, frames / 2, hidden] of whole streams [batch, frames, 80]."""
        past = [state.to(mel.dtype).expand(len(mel), -1, -1) for state in self.initial_state()]
        return self.advance(mel, past)[0]
