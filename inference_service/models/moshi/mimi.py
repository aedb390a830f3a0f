"""The codec Mimi, frame by frame for many streams at once.

Weights and layers are those of transformers' `MimiModel`; the past of each convolution is an explicit state
of its stream, also in the decoder, for which transformers has none. The caches of the codec's two
transformers belong to the caller.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MimiModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.mimi.modeling_mimi import (
    MimiConv1d,
    MimiConvTranspose1d,
    MimiPreTrainedModel,
    MimiResnetBlock,
    MimiTransformerModel,
)

from inference_service.models.errors import CheckpointError

ConvState = tuple[Tensor | None, ...]
"""States of the convolutions of one stream, [channels, steps]; None before the first frame."""


class MimiStack(MimiPreTrainedModel):  # type: ignore[misc]
    """One of the transformers of the codec, with the interface of a decoder's backbone."""

    def __init__(self, stack: MimiTransformerModel) -> None:
        super().__init__(stack.config)
        self.stack = stack

    @property
    def layers(self) -> nn.ModuleList:
        """Its layers."""
        layers: nn.ModuleList = self.stack.layers
        return layers

    @property
    def rotary_emb(self) -> nn.Module:
        """The module of its rotary positions."""
        module: nn.Module = self.stack.rotary_emb
        return module

    def forward(
        self,
        inputs_embeds: Tensor,
        position_ids: Tensor,
        attention_mask: object = None,
        use_cache: bool = False,
        **attending: Any,
    ) -> BaseModelOutput:
        """Return rows [1, n, hidden] after all layers; the attention function decides what each row attends
        to.
        """
        rows, positions = inputs_embeds, self.rotary_emb(inputs_embeds, position_ids)
        for layer in self.layers:
            rows = layer(rows, position_embeddings=positions, **attending)
        return BaseModelOutput(last_hidden_state=rows)


class Mimi(nn.Module):
    """The codec, without the state of any stream. A frame has `samples` samples and `codes` codes."""

    def __init__(self, network: MimiModel, codes: int) -> None:
        """Wrap the network. Raises `CheckpointError` for a codec that cannot be run frame by frame."""
        super().__init__()
        config = network.config
        if not config.use_causal_conv or config.trim_right_ratio != 1 or config.use_conv_shortcut:
            raise CheckpointError("The codec in config.json is not causal, so it cannot be streamed.")
        if config.num_quantizers < codes:
            raise CheckpointError(
                f"The codec has {config.num_quantizers} codebooks; the model speaks with {codes}."
            )
        self.network = network
        self.codes = codes
        self.size = int(config.codebook_size)
        """Codes of a codebook."""
        self.sample_rate_hz = int(config.sampling_rate)
        self.samples = int(config.frame_size)
        self.rows = int(config.latent_stride)
        """Rows of a frame in either transformer."""
        self.encoder = MimiStack(network.encoder.encoder_transformer)
        self.decoder = MimiStack(network.decoder.decoder_transformer)
        self.ear_state: ConvState = (None,) * _count(network.encoder)
        """The encoder's state of a new stream."""
        self.mouth_state: ConvState = (None,) * _count(network.decoder)
        """The decoder's state of a new stream."""

    def hear(self, frames: Tensor, states: Sequence[ConvState]) -> tuple[Tensor, list[ConvState]]:
        """Return the input of `encoder`, rows [n, rows, hidden], for frames [n, samples].

        `write` makes codes of the encoder's output. `states` are those of the convolutions before `encoder`.
        """
        past = _Past(states)
        latent = _run(self.network.encoder.encoder_seanet.layers, frames[:, None], past)
        return latent.transpose(1, 2), past.states()

    def write(self, rows: Tensor, states: Sequence[ConvState]) -> tuple[Tensor, list[ConvState]]:
        """Return codes, int64 [n, codes], of rows [n, rows, hidden] from `encoder`."""
        past = _Past(states)
        latent = past.convolve(self.network.encoder.downsample, rows.transpose(1, 2))
        codes = self.network.quantizer.encode(latent, num_quantizers=self.codes)
        return codes[:, :, 0].T, past.states()

    def read(self, codes: Tensor, states: Sequence[ConvState]) -> tuple[Tensor, list[ConvState]]:
        """Return the input of `decoder`, rows [n, rows, hidden], for codes [n, codes].

        `say` makes sound of the decoder's output.
        """
        past = _Past(states)
        latent = self.network.quantizer.decode(codes[:, :, None])
        return past.expand(self.network.decoder.upsample, latent).transpose(1, 2), past.states()

    def say(self, rows: Tensor, states: Sequence[ConvState]) -> tuple[Tensor, list[ConvState]]:
        """Return sound [n, samples] of rows [n, rows, hidden] from `decoder`."""
        past = _Past(states)
        sound = _run(self.network.decoder.decoder_seanet.layers, rows.transpose(1, 2), past)
        return sound[:, 0], past.states()

    @property
    def ear_split(self) -> int:
        """Number of the ear's states that belong to `hear`; the others belong to `write`."""
        return len(self.ear_state) - 1

    @property
    def mouth_split(self) -> int:
        """Number of the mouth's states that belong to `read`; the others belong to `say`."""
        return 1


class _Past:
    """The states of a batch of streams, in the order of the convolutions."""

    def __init__(self, states: Sequence[ConvState]) -> None:
        self._before = list(zip(*states, strict=True))
        self._after: list[Sequence[Tensor]] = []

    def convolve(self, layer: MimiConv1d, steps: Tensor) -> Tensor:
        """Return a convolution of steps [n, channels, time] after its left context."""
        conv, left = layer.conv, _kept(layer)
        if left:
            begin = steps[:, :, :1] if layer.pad_mode == "replicate" else None
            steps = torch.cat([self._taken(steps, begin, steps.shape[1], left), steps], dim=2)
            self._after.append(steps[:, :, steps.shape[2] - left :].unbind())
        return F.conv1d(steps, conv.weight, conv.bias, conv.stride, 0, conv.dilation, conv.groups)

    def expand(self, layer: MimiConvTranspose1d, steps: Tensor) -> Tensor:
        """Return a transposed convolution; its contribution to later steps is kept."""
        conv, complete = layer.conv, steps.shape[2] * layer.conv.stride[0]
        spread = F.conv_transpose1d(steps, conv.weight, None, conv.stride, groups=conv.groups)
        waiting = spread.shape[2] - complete
        spread[:, :, :waiting] += self._taken(steps, None, spread.shape[1], waiting)
        self._after.append(spread[:, :, complete:].unbind())
        made = spread[:, :, :complete]
        return made if conv.bias is None else made + conv.bias[:, None]

    def _taken(self, like: Tensor, begin: Tensor | None, channels: int, steps: int) -> Tensor:
        """Return the kept steps of each stream, [n, channels, steps]; at first `begin` [n, channels, 1] or
        zeros.
        """
        states = self._before[len(self._after)]
        if any(state is None for state in states):
            first = like.new_zeros(1, 1, 1) if begin is None else begin
            first = first.expand(len(states), channels, steps)
            states = tuple(own if state is None else state for own, state in zip(first, states, strict=True))
        return torch.stack(states)

    def states(self) -> list[ConvState]:
        """Return the state of each stream."""
        return list(zip(*self._after, strict=True))


def _run(layers: Iterable[nn.Module], steps: Tensor, past: _Past) -> Tensor:
    for layer in layers:
        if isinstance(layer, MimiResnetBlock):
            steps = steps + _run(layer.block, steps, past)
        elif isinstance(layer, MimiConv1d):
            steps = past.convolve(layer, steps)
        elif isinstance(layer, MimiConvTranspose1d):
            steps = past.expand(layer, steps)
        else:
            steps = layer(steps)
    return steps


def _kept(layer: MimiConv1d | MimiConvTranspose1d) -> int:
    """Return the number of steps that are kept from one frame for the next."""
    conv = layer.conv
    return int((conv.kernel_size[0] - 1) * conv.dilation[0] + 1 - conv.stride[0])


def _count(part: nn.Module) -> int:
    layers = (it for it in part.modules() if isinstance(it, MimiConv1d | MimiConvTranspose1d))
    return sum(_kept(it) > 0 for it in layers)
