"""MiniCPM-o's ear: a Whisper encoder that hears second after second, and its projection.

Names of parameters are those of the published checkpoint (`apm`, `audio_projection_layer`). The state of a
stream is an explicit object; streams of different age are encoded in one call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference_service.engine.device.transfer import upload
from inference_service.models.minicpmo.config import AudioConfig

LONGEST = 1500
"""Encoder frames of 20 ms that there are positions for."""
UNIT = 50
"""Encoder frames of one unit."""
CAPACITY = LONGEST - UNIT
"""Encoder frames that a stream remembers at most; when the next unit has no room it forgets them all."""
_CLIPS_AT_ONCE = 8

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Attention of a layer, by its number: queries, keys and values [batch, heads, n, head size] -> the same."""


@dataclass(frozen=True)
class AudioState:
    """What one stream remembers: keys and values of the first `length` of its encoder frames.

    What comes next is written behind them, in the same memory: a state is continued once.
    """

    cache: Tensor
    """[layers, 2, heads, CAPACITY, head size]."""
    length: int = 0

    @property
    def nbytes(self) -> int:
        """Memory that the state takes, from the stream's begin to its end."""
        return self.cache.nbytes


class SelfAttention(nn.Module):
    """Whisper's: the keys have no bias."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.heads = config.heads
        width = config.width
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        """`x` [batch, n, width]: the same shape."""
        q, k, v = (
            linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear in (self.q_proj, self.k_proj, self.v_proj)
        )
        out: Tensor = self.out_proj(attend(layer, q, k, v).transpose(1, 2).flatten(2))
        return out


class Layer(nn.Module):
    """One layer of Whisper's encoder."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.self_attn = SelfAttention(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.width)
        self.fc1 = nn.Linear(config.width, config.inner)
        self.fc2 = nn.Linear(config.inner, config.width)
        self.final_layer_norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        """`x` [batch, n, width]: the same shape."""
        x = x + self.self_attn(self.self_attn_layer_norm(x), layer, attend)
        out: Tensor = x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))
        return out


class WhisperEncoder(nn.Module):
    """Log-mel at 100 Hz to states at 50 Hz."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.bands, config.width, 3, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(LONGEST, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.layer_norm = nn.LayerNorm(config.width)

    def convolve(self, mels: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        """`mels` [batch, bands, n]: [batch, ceil(n / 2), width]. Nothing is heard beyond `lengths`."""
        x = F.gelu(self.conv1(mels.to(self.conv1.weight)))
        if lengths is not None:
            x = x * _present(lengths, x)[:, None]
        return F.gelu(self.conv2(x)).transpose(1, 2)

    def forward(self, x: Tensor, begins: Sequence[int], attend: Attend) -> Tensor:
        """Convolved frames [batch, n, width], at positions from `begins` on: states of the same shape."""
        count = x.shape[1]
        x = x + torch.stack([self.embed_positions.weight[begin : begin + count] for begin in begins])
        for number, layer in enumerate(self.layers):
            x = layer(x, number, attend)
        out: Tensor = self.layer_norm(x)
        return out


def _present(lengths: Sequence[int], like: Tensor) -> Tensor:
    """Which of the entries of a padded batch are there: bool [batch, like.shape[-1]]."""
    (ends,) = upload(like.device, np.array(lengths, np.int64))
    return torch.arange(like.shape[-1], device=like.device) < ends[:, None]


class Projection(nn.Module):
    """Two layers, by their published names."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(inputs, outputs)
        self.linear2 = nn.Linear(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [..., inputs]: [..., outputs]."""
        out: Tensor = self.linear2(F.relu(self.linear1(x)))
        return out


class Ear:
    """Encoder and projection of a model: ten embeddings of the language model for each second."""

    def __init__(self, config: AudioConfig, encoder: WhisperEncoder, projection: Projection) -> None:
        self.config = config
        self.encoder = encoder
        self.projection = projection

    def initial_state(self) -> AudioState:
        """The state of a stream that has heard nothing; all the memory that it will ever take."""
        config = self.config
        heads = config.heads
        weight = self.encoder.layer_norm.weight
        return AudioState(weight.new_empty(config.layers, 2, heads, CAPACITY, config.width // heads))

    def encode(self, mels: list[Tensor], states: list[AudioState]) -> tuple[list[Tensor], list[AudioState]]:
        """One unit of each stream, as `StreamingMel` gives it: embeddings [10, hidden] and new states."""
        heard, after = self.listen(mels, states)
        return list(self._pooled(heard)), after

    def listen(self, mels: list[Tensor], states: list[AudioState]) -> tuple[Tensor, list[AudioState]]:
        """One unit of each stream: encoder states [streams, 50, width], and new states of the streams.

        A stream forgets what it heard when its unit, shared frames included, has no positions left.
        """
        x = self._convolved(mels)
        begins = [
            0 if state.length + -(-mel.shape[1] // 2) >= LONGEST else state.length
            for mel, state in zip(mels, states, strict=True)
        ]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = []
            for i, (state, begin) in enumerate(zip(states, begins, strict=True)):
                past = state.cache[layer, :, :, : begin + UNIT]
                past[0, :, begin:], past[1, :, begin:] = k[i], v[i]
                out.append(F.scaled_dot_product_attention(q[i : i + 1], past[:1], past[1:]))
            return torch.cat(out)

        after = [AudioState(state.cache, begin + UNIT) for state, begin in zip(states, begins, strict=True)]
        return self.encoder(x, begins, attend), after

    def encode_clips(self, clips: list[list[Tensor]]) -> list[Tensor]:
        """Whole clips, each as the list that `clip_mels` gives: [`clip_tokens`, hidden] of each.

        A second hears itself and the seconds before it.
        """
        pieces = [piece for clip in clips for piece in clip]
        embedded: list[Tensor] = []
        for begin in range(0, len(pieces), _CLIPS_AT_ONCE):
            embedded += self._encode_pieces(pieces[begin : begin + _CLIPS_AT_ONCE])
        left = iter(embedded)
        return [torch.cat([next(left) for _ in clip]) for clip in clips]

    def clip_tokens(self, frames: int) -> int:
        """Embeddings of a piece of a clip with so many mel frames."""
        return ((frames + 1) // 2 - self.config.pool) // self.config.pool + 1

    def _convolved(self, mels: list[Tensor]) -> Tensor:
        """Frames [streams, 50, width] of one unit each; those that units share are heard, but left out."""
        frames: dict[int, Tensor] = {}
        for length in {mel.shape[1] for mel in mels}:
            members = [i for i, mel in enumerate(mels) if mel.shape[1] == length]
            x = self.encoder.convolve(torch.stack([mels[i] for i in members]))
            frames |= zip(members, x[:, x.shape[1] - 1 - UNIT : -1], strict=True)
        return torch.stack([frames[i] for i in range(len(mels))])

    def _encode_pieces(self, mels: list[Tensor]) -> list[Tensor]:
        lengths = [mel.shape[1] for mel in mels]
        padded = nn.utils.rnn.pad_sequence([mel.T for mel in mels], batch_first=True).transpose(1, 2)
        x = self.encoder.convolve(padded, lengths)
        block = torch.arange(x.shape[1], device=x.device) // self.config.block
        present = _present([(length + 1) // 2 for length in lengths], x.transpose(1, 2))
        mask = (block <= block[:, None])[None, None] & present[:, None, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

        embedded = self._pooled(self.encoder(x, [0] * len(mels), attend))
        return [row[: self.clip_tokens(length)] for row, length in zip(embedded, lengths, strict=True)]

    def _pooled(self, states: Tensor) -> Tensor:
        projected = self.projection(states).transpose(1, 2)
        return F.avg_pool1d(projected, self.config.pool).transpose(1, 2)
