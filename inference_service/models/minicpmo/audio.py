"""MiniCPM-o's ear: a Whisper encoder for streams, second by second, and its projection.

Names of parameters are those of the published checkpoint (`apm`, `audio_projection_layer`). The state of a
stream is an explicit object. Streams of different age are encoded in one call.
"""

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference_service.device.graph import Region, size_for
from inference_service.device.transfer import upload
from inference_service.models.minicpmo.config import AudioConfig

LONGEST = 1500
"""Encoder frames of 20 ms that have positions."""
UNIT = 50
"""Encoder frames of one unit."""
CAPACITY = LONGEST - UNIT
"""Limit of encoder frames in a stream's cache; if the next unit does not fit, all are dropped."""
_CLIPS_AT_ONCE = 8
_STREAMS = (1, 2, 4, 8, 16)
"""Numbers of streams whose units are captured; other numbers are padded."""

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Attention of one layer: takes the layer's number, and queries, keys and values [batch, heads, n, head
size].
"""


@dataclass(frozen=True)
class AudioState:
    """The state of one stream: keys and values of the first `length` of its encoder frames.

    Later frames are written after them in the same memory, so a state is continued only once.
    """

    cache: Tensor
    """[layers, 2, heads, CAPACITY, head size]."""
    length: int = 0
    place: "Place | None" = None
    """The place of the cache among those of all streams; None if it is separate."""

    @property
    def nbytes(self) -> int:
        """Memory of the state for the stream's whole life."""
        return self.cache.nbytes


class Place:
    """One of the contiguous caches, free again once no state refers to it."""

    def __init__(self, free: list[int]) -> None:
        self.number = free.pop()
        weakref.finalize(self, free.append, self.number)


class SelfAttention(nn.Module):
    """Whisper's self-attention, in which keys have no bias."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.heads = config.heads
        width = config.width
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, layer: int, attend: Attend) -> Tensor:
        """Return the attention output of `x` [batch, n, width]: the same shape."""
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
        """Return the output for `x` [batch, n, width]: the same shape."""
        x = x + self.self_attn(self.self_attn_layer_norm(x), layer, attend)
        out: Tensor = x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))
        return out


class WhisperEncoder(nn.Module):
    """Whisper's encoder, from log-mel at 100 Hz to states at 50 Hz."""

    def __init__(self, config: AudioConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.bands, config.width, 3, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(LONGEST, config.width)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.layer_norm = nn.LayerNorm(config.width)

    def convolve(self, mels: Tensor, lengths: Sequence[int] | None = None) -> Tensor:
        """Return [batch, ceil(n / 2), width] for `mels` [batch, bands, n]; frames beyond `lengths` are
        masked.
        """
        x = F.gelu(self.conv1(mels.to(self.conv1.weight)))
        if lengths is not None:
            x = x * _present(lengths, x)[:, None]
        return F.gelu(self.conv2(x)).transpose(1, 2)

    def forward(self, x: Tensor, begins: Sequence[int], attend: Attend) -> Tensor:
        """Return states of convolved frames [batch, n, width], at positions from `begins` on: the
        same shape.
        """
        count, table = x.shape[1], self.embed_positions.weight
        return self.encode(x, torch.stack([table[begin : begin + count] for begin in begins]), attend)

    def encode(self, x: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return states of convolved frames and their position embeddings, all [batch, n, width]."""
        x = x + positions
        for number, layer in enumerate(self.layers):
            x = layer(x, number, attend)
        out: Tensor = self.layer_norm(x)
        return out


def _begins(mels: list[Tensor], states: list[AudioState]) -> list[int]:
    """Return the start position of each stream's next unit: 0 if too few positions are left for all frames in
    `mels`, which include the frames that a unit shares with its neighbours.
    """
    return [
        0 if state.length + -(-mel.shape[1] // 2) >= LONGEST else state.length
        for mel, state in zip(mels, states, strict=True)
    ]


def _present(lengths: Sequence[int], like: Tensor) -> Tensor:
    """Return the mask of a padded batch's real entries: bool [batch, like.shape[-1]]."""
    (ends,) = upload(like.device, np.array(lengths, np.int64))
    return torch.arange(like.shape[-1], device=like.device) < ends[:, None]


class Projection(nn.Module):
    """Two linear layers with a ReLU between, under their published names."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear1 = nn.Linear(inputs, outputs)
        self.linear2 = nn.Linear(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return [..., outputs] for `x` [..., inputs]."""
        out: Tensor = self.linear2(F.relu(self.linear1(x)))
        return out


class Ear:
    """Encoder and projection of a model: ten embeddings of the language model for each second."""

    def __init__(self, config: AudioConfig, encoder: WhisperEncoder, projection: Projection) -> None:
        self.config = config
        self.encoder = encoder
        self.projection = projection
        self._caches: Tensor | None = None
        """Caches of streams, contiguous: [streams, layers, 2, heads, CAPACITY, head size]."""
        self._free: list[int] = []
        self._region: Region | None = None

    def capture(self, streams: int) -> None:
        """Allocate caches for this many streams, and capture units of several numbers of streams."""
        weight = self.encoder.layer_norm.weight
        self._caches = weight.new_zeros(streams, *self._shape)
        self._free = list(reversed(range(streams)))
        self._region = Region(weight.device, self._unit)
        for count in reversed([it for it in _STREAMS if it < 2 * streams]):
            frames = weight.new_zeros(count, UNIT, self.config.width)
            numbers = torch.zeros(2, count, dtype=torch.int64, device=weight.device)
            self._region.prepare("", [frames, numbers])
        self._caches.zero_()

    def initial_state(self) -> AudioState:
        """Return the state of a new stream, with all the memory that it will need."""
        if self._caches is not None and self._free:
            place = Place(self._free)
            cache = self._caches[place.number]
            cache.zero_()  # entries beyond the end of a stream are masked, but must not be NaN
            return AudioState(cache, place=place)
        return AudioState(self.encoder.layer_norm.weight.new_empty(self._shape))

    @property
    def _shape(self) -> tuple[int, ...]:
        config = self.config
        return config.layers, 2, config.heads, CAPACITY, config.width // config.heads

    def encode(self, mels: list[Tensor], states: list[AudioState]) -> tuple[list[Tensor], list[AudioState]]:
        """Encode one unit of each stream, as `StreamingMel` gives it: embeddings [10, hidden] and new
        states."""
        if self._region is None or any(state.place is None for state in states):
            heard, after = self.listen(mels, states)
            return list(self._pooled(heard)), after
        embedded: list[Tensor] = []
        frames, begins = self._convolved(mels), _begins(mels, states)
        for first in range(0, len(mels), _STREAMS[-1]):
            part = slice(first, first + _STREAMS[-1])
            embedded += self._captured(self._region, frames[part], states[part], begins[part])
        after = [
            AudioState(state.cache, begin + UNIT, state.place)
            for state, begin in zip(states, begins, strict=True)
        ]
        return embedded, after

    def _captured(
        self, region: Region, frames: Tensor, states: list[AudioState], begins: list[int]
    ) -> list[Tensor]:
        """Return embeddings of one unit of each stream; the first stream is repeated as padding."""
        count, size = len(states), size_for(len(states), _STREAMS)
        assert size is not None
        numbers = np.empty((2, size), np.int64)
        numbers[:, :count] = begins, [state.place.number for state in states if state.place is not None]
        numbers[:, count:] = numbers[:, :1]
        (there,) = upload(frames.device, numbers)
        frames = torch.cat([frames, frames[:1].expand(size - count, -1, -1)])
        return list(region("", frames, there)[0][:count])

    def _unit(self, name: str, frames: Tensor, numbers: Tensor) -> tuple[Tensor]:
        """Return embeddings [streams, 10, hidden] of convolved frames [streams, 50, width].

        `numbers`, int64 [2, streams], holds the start of the frames in each cache, and the index of the
        cache.
        """
        assert self._caches is not None
        caches, (begins, places) = self._caches, numbers.unbind()
        at = begins[:, None] + torch.arange(UNIT, device=frames.device)
        is_heard = torch.arange(CAPACITY, device=frames.device) < (begins + UNIT)[:, None]

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            seen = []
            for part, new in ((0, k), (1, v)):
                slab = caches[:, layer, part]
                slab[places[:, None], :, at] = new.transpose(1, 2)
                seen.append(slab.index_select(0, places))
            return F.scaled_dot_product_attention(q, seen[0], seen[1], attn_mask=is_heard[:, None, None])

        positions = self.encoder.embed_positions(at)
        return (self._pooled(self.encoder.encode(frames, positions, attend)),)

    def listen(self, mels: list[Tensor], states: list[AudioState]) -> tuple[Tensor, list[AudioState]]:
        """Encode one unit of each stream: encoder states [streams, 50, width], and new states of the streams.

        A stream's cache is cleared if too few positions are left; see `_begins`.
        """
        x = self._convolved(mels)
        begins = _begins(mels, states)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            out = []
            for i, (state, begin) in enumerate(zip(states, begins, strict=True)):
                past = state.cache[layer, :, :, : begin + UNIT]
                past[0, :, begin:], past[1, :, begin:] = k[i], v[i]
                out.append(F.scaled_dot_product_attention(q[i : i + 1], past[:1], past[1:]))
            return torch.cat(out)

        after = [
            AudioState(state.cache, begin + UNIT, state.place)
            for state, begin in zip(states, begins, strict=True)
        ]
        return self.encoder(x, begins, attend), after

    def encode_clips(self, clips: list[list[Tensor]]) -> list[Tensor]:
        """Encode whole clips, each a list from `clip_mels`; return [`clip_tokens`, hidden] of each.

        A second attends to itself and to earlier seconds.
        """
        pieces = [piece for clip in clips for piece in clip]
        embedded: list[Tensor] = []
        for begin in range(0, len(pieces), _CLIPS_AT_ONCE):
            embedded += self._encode_pieces(pieces[begin : begin + _CLIPS_AT_ONCE])
        left = iter(embedded)
        return [torch.cat([next(left) for _ in clip]) for clip in clips]

    def clip_tokens(self, frames: int) -> int:
        """Return the number of embeddings of a piece of a clip with `frames` mel frames."""
        return ((frames + 1) // 2 - self.config.pool) // self.config.pool + 1

    def _convolved(self, mels: list[Tensor]) -> Tensor:
        """Return frames [streams, 50, width] of one unit each; frames that units share are read but not
        returned.
        """
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
