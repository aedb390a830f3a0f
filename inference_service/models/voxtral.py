"""Voxtral Realtime: an audio encoder and a decoder that advance together, 80 ms a step.

The network is transformers' own. Every row of the decoder is the sum of one audio embedding and the embedding
of the token that was decided on the row before. The decoder's condition is the number of tokens by which its
text lags behind the sound. The module holds no state of a stream: the past of the convolutions is an explicit
state, and the KV caches of both stacks belong to the caller.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, VoxtralRealtimeForConditionalGeneration

from inference_service.models.errors import CheckpointError

LONGEST_WORD = 10
"""Tokens of silence beyond the delay until the last word is out; as in mistral-common."""

ConvState = tuple[Tensor, ...]
"""Left context [channels, steps] of each convolution of one stream."""


@dataclass(frozen=True)
class Pacing:
    """The pace of tokens: each stands for `samples_per_token` samples, `mels_per_token` mel frames."""

    sample_rate_hz: int
    samples_per_token: int
    mels_per_token: int
    left_pad_tokens: int
    """Tokens of silence before an utterance."""
    delay_tokens: int
    """Tokens by which the text lags behind the sound."""

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens fed at once at the start of an utterance: one that begins it, then silence and
        delay.
        """
        return 1 + self.left_pad_tokens + self.delay_tokens

    @property
    def right_pad_tokens(self) -> int:
        """Tokens of silence after an utterance; the token of the last row is not needed."""
        return self.delay_tokens + LONGEST_WORD


def parse_pacing(audio: Mapping[str, Any], mels_per_token: int) -> Pacing:
    """Return the pacing of a `tekken.json`'s `audio`. Raises `CheckpointError` where the mel frames that the
    network takes for a token contradict it."""
    try:
        rate, hop = int(audio["sampling_rate"]), int(audio["audio_encoding_config"]["hop_length"])
        samples = int(rate / audio["frame_rate"])
        delay, uneven = divmod(audio["transcription_delay_ms"] * rate / 1000, samples)
        pacing = Pacing(rate, samples, samples // hop, int(audio["streaming_n_left_pad_tokens"]), int(delay))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"The audio part of tekken.json is not of a streaming model: {error!r}."
        ) from None
    if uneven or pacing.delay_tokens < 1:
        raise CheckpointError(
            f"transcription_delay_ms in tekken.json must be a multiple of {1000 * samples / rate:g}, "
            f"not {audio['transcription_delay_ms']}."
        )
    if samples % hop or pacing.mels_per_token != mels_per_token:
        raise CheckpointError(
            f"A token has {samples / hop:g} mel frames in tekken.json and {mels_per_token} in the model's "
            "configuration."
        )
    return pacing


class VoxtralModel(nn.Module):
    """The network of one checkpoint and its pacing, without streams."""

    def __init__(self, network: VoxtralRealtimeForConditionalGeneration, pacing: Pacing) -> None:
        super().__init__()
        self.network = network
        self.pacing = pacing

    @property
    def encoder(self) -> PreTrainedModel:
        """The audio encoder; it takes the embeddings of `embed`."""
        tower: PreTrainedModel = self.network.model.audio_tower
        return tower

    @property
    def language(self) -> PreTrainedModel:
        """The decoder; its layers take `condition` as `t_cond`."""
        model: PreTrainedModel = self.network.model.language_model
        return model

    @property
    def rows_per_token(self) -> int:
        """Rows of the encoder in one audio embedding."""
        return int(self.network.config.downsample_factor)

    def condition(self) -> Tensor:
        """Return the decoder's condition on its delay, [1, hidden]."""
        weight = self.network.lm_head.weight
        delay = torch.full((1,), self.pacing.delay_tokens, device=weight.device, dtype=weight.dtype)
        condition: Tensor = self.network.model.time_embedding(delay)[None]
        return condition

    def initial_state(self) -> ConvState:
        """Return the state of a new stream."""
        embedder = self.network.model.audio_tower.embedder
        weight = embedder.conv1.weight
        return tuple(weight.new_zeros(conv.in_channels, conv.left_pad) for conv in _convolutions(embedder))

    def embed(self, mels: list[Tensor], states: list[ConvState]) -> tuple[list[Tensor], list[ConvState]]:
        """Return encoder rows [n, hidden] and new states for mel frames [2 n, bands] of each stream.

        Streams with equally many frames share a batch.
        """
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for index, mel in enumerate(mels):
            groups[len(mel)].append(index)
        embedded: dict[int, Tensor] = {}
        after: dict[int, ConvState] = {}
        embedder = self.network.model.audio_tower.embedder
        for members in groups.values():
            past = _Past([states[i] for i in members], embedder)
            batch = torch.stack([mels[i] for i in members]).to(embedder.conv1.weight).transpose(1, 2)
            embedded |= zip(members, embedder(batch, padding_cache=past), strict=True)
            after |= zip(members, past.states(), strict=True)
        order = range(len(mels))
        return [embedded[i] for i in order], [after[i] for i in order]

    def project(self, rows: Tensor) -> Tensor:
        """Return audio embeddings [n, hidden of the decoder] of encoder outputs [n *
        rows_per_token, hidden].
        """
        joined = rows.reshape(len(rows) // self.rows_per_token, -1)
        embeddings: Tensor = self.network.model.multi_modal_projector(joined)
        return embeddings


def _convolutions(embedder: nn.Module) -> list[Any]:
    return [embedder.conv1, embedder.conv2]


class _Past:
    """The padding cache of transformers' convolutions, over the states of a batch of streams."""

    def __init__(self, states: list[ConvState], embedder: nn.Module) -> None:
        keys = [conv.cache_key for conv in _convolutions(embedder)]
        self._past = dict(zip(keys, map(torch.stack, zip(*states, strict=True)), strict=True))

    def update(self, x: Tensor, key: str, convolution: Any) -> Tensor:
        """Return `x` [batch, channels, time] after its past, and keep its end as the next past."""
        x = torch.cat([self._past[key], x], dim=2)
        self._past[key] = x[:, :, x.shape[2] - convolution.left_pad :]
        return x

    def states(self) -> list[ConvState]:
        """Return the state of each stream."""
        return list(zip(*(past.unbind() for past in self._past.values()), strict=True))
