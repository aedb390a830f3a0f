"""Flow matching from speech tokens to mel frames, chunk by chunk for many streams.

Names of parameters are those of the published `flow.pt`. Streams whose chunks and caches are equally long run
in one batch; the module holds no state of a stream.
"""

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference_service.device.transfer import upload
from inference_service.models.token2wav.config import (
    FRAMES_PER_TOKEN,
    GENERATED_FRAMES,
    LOOK_AHEAD,
    MELS,
    SILENT_TOKEN,
    Token2WavConfig,
)
from inference_service.models.token2wav.conformer import Encoder, EncoderState
from inference_service.models.token2wav.estimator import Estimator

T = TypeVar("T")


@dataclass(frozen=True)
class VoicePrompt:
    """A voice on the host: its speech tokens [n], mel frames [2 n, 80] and speaker vector [192]."""

    tokens: Tensor
    mel: Tensor
    speaker: Tensor
    salt: bytes = b""
    """Salt of the tenant that sent the recording: its caches are found only with this salt."""


@dataclass(frozen=True)
class FlowState:
    """The state of one stream between chunks.

    `attention` [steps, depth, 2, 2, heads, t, head size] are keys and values of the guided and of the
    unguided flow, newest chunk first; `convolution` [steps, depth, 2, 2, width, 2] are the last inputs of the
    convolutions of both flows.
    """

    prompt_frames: int
    speaker: Tensor
    """[192]."""
    encoder: EncoderState
    attention: Tensor
    convolution: Tensor

    @property
    def frames(self) -> int:
        """Mel frames in the caches."""
        return self.attention.shape[5]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; streams of equal shape can share a batch."""
        return self.prompt_frames, self.frames, self.encoder.first.shape[3]

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the state."""
        encoder = self.encoder
        kept = [encoder.look, encoder.up, encoder.first, encoder.second]
        return [self.speaker, *kept, self.attention, self.convolution]

    def holding(self, tensors: Sequence[Tensor]) -> "FlowState":
        """Return a state of the same voice with other tensors."""
        speaker, look, up, first, second, attention, convolution = tensors
        encoder = EncoderState(look, up, first, second)
        return FlowState(self.prompt_frames, speaker, encoder, attention, convolution)


class Decoder(nn.Module):
    """Holds the estimator under its published name."""

    def __init__(self, config: Token2WavConfig) -> None:
        super().__init__()
        self.estimator = Estimator(config.estimator)


class Flow(nn.Module):
    """The token encoder, and Euler's method along the estimated flow."""

    noise: Tensor

    def __init__(
        self,
        config: Token2WavConfig,
        noise: Tensor,
        *,
        steps: int,
        dtype: torch.dtype,
        cache_dtype: torch.dtype,
        reference_quirks: bool,
    ) -> None:
        """Create the flow with weights in `dtype`.

        `noise` [80, frames] is normally distributed, and is used in float32 for any `dtype`. `cache_dtype` is
        that of the estimator's caches.
        """
        super().__init__()
        width = config.encoder.width
        self.config = config
        self.steps = steps
        self.cache_dtype = cache_dtype
        self.input_embedding = nn.Embedding(config.encoder.vocabulary, width)
        self.spk_embed_affine_layer = nn.Linear(config.speaker, MELS)
        self.encoder = Encoder(config.encoder)
        self.encoder_proj = nn.Linear(width, MELS)
        self.decoder = Decoder(config)
        self.to(dtype)
        self.register_buffer("noise", noise, persistent=False)
        self._cuts_first_blocks_by_frames = reference_quirks and not config.vocoder.is_causal

    @property
    def _weight(self) -> Tensor:
        return self.input_embedding.weight

    def begin(self, prompt: VoicePrompt) -> FlowState:
        """Return the state of a stream after its prompt. Raises `ValueError` if the prompt's lengths
        disagree.
        """
        return drained(self.beginning(prompt))

    def beginning(self, prompt: VoicePrompt) -> Generator[None, None, FlowState]:
        """Compute `begin` in portions of one step along the flow."""
        frames = FRAMES_PER_TOKEN * len(prompt.tokens)
        if prompt.mel.shape != (frames, MELS):
            raise ValueError(f"A prompt needs mel frames [{frames}, {MELS}], not {list(prompt.mel.shape)}.")
        parts = (prompt.tokens, prompt.mel, prompt.speaker)
        prompt_tokens, mel, speaker = upload(self._weight.device, *(it.numpy() for it in parts))
        silence = prompt_tokens.new_full((LOOK_AHEAD,), SILENT_TOKEN)
        ahead = prompt_tokens[:LOOK_AHEAD] if self.config.vocoder.is_causal else silence
        tokens = torch.cat([prompt_tokens, ahead])[None]
        empty = self._empty(speaker, frames)
        _, (state,) = yield from self._chunk(tokens, [empty], is_last=False, known=mel[None])
        return state

    def advance(
        self, tokens: Tensor, states: list[FlowState], *, is_last: bool
    ) -> tuple[Tensor, list[FlowState]]:
        """Return mel frames, float32 [batch, 2 n, 80], of the next chunk of each stream, and new states.

        The streams have one shape. `tokens` are [batch, n + 3], or [batch, n] if they are the last.
        """
        mel, new = drained(self._chunk(tokens, states, is_last=is_last))
        return mel, [self._trimmed(state) for state in new]

    def whole(self, prompt: VoicePrompt, tokens: Tensor) -> Tensor:
        """Return float32 mel frames [2 n, 80] of n complete tokens, which differ from those of a stream."""
        state = self._empty(prompt.speaker, 0)
        device = self._weight.device
        every = torch.cat([prompt.tokens.to(device), tokens.to(device)])[None]
        known = F.pad(prompt.mel.to(device), (0, 0, 0, FRAMES_PER_TOKEN * len(tokens)))[None]
        mel, _ = drained(self._chunk(every, [state], is_last=True, known=known))
        return mel[0, len(prompt.mel) :]

    def _empty(self, speaker: Tensor, prompt_frames: int) -> FlowState:
        config, weight = self.config.estimator, self._weight
        sizes = (self.steps, config.depth, 2, 2)
        return FlowState(
            prompt_frames,
            speaker.to(weight),
            self.encoder.initial_state(),
            weight.new_zeros(*sizes, config.heads, 0, config.head_dim, dtype=self.cache_dtype),
            weight.new_zeros(*sizes, config.width, 2, dtype=self.cache_dtype),
        )

    def _chunk(
        self, tokens: Tensor, states: list[FlowState], *, is_last: bool, known: Tensor | None = None
    ) -> Generator[None, None, tuple[Tensor, list[FlowState]]]:
        """Advance as `advance` does, in portions, with mel frames `known` [batch, 2 n, 80]; no cache is
        cut."""
        embedded = self.input_embedding(tokens)
        encoded, encoders = self.encoder(embedded, [state.encoder for state in states], is_last=is_last)
        mean = self.encoder_proj(encoded)
        known = torch.zeros_like(mean) if known is None else known.to(mean)
        mel, attention, convolution = yield from self._solve(mean, states, known)
        return mel, [
            replace(
                state,
                encoder=encoders[i],
                attention=torch.cat([attention[:, :, :, :, i], state.attention], dim=5),
                convolution=convolution[:, :, :, :, i].clone(),
            )
            for i, state in enumerate(states)
        ]

    def _solve(
        self, mean: Tensor, states: list[FlowState], known: Tensor
    ) -> Generator[None, None, tuple[Tensor, Tensor, Tensor]]:
        """Solve from noise to mel [batch, n, 80], and yield between steps.

        The result also has the new parts of both caches, [steps, depth, 2, 2, batch, ...].
        """
        batch, frames = mean.shape[:2]
        offset = states[0].frames
        if offset + frames > self.noise.shape[1]:
            raise ValueError(f"A stream has at most {self.noise.shape[1]} mel frames in its caches.")
        x = self.noise[:, offset : offset + frames].T.expand(batch, -1, -1)
        speakers = F.normalize(torch.stack([state.speaker for state in states]), dim=1)
        speaker = self.spk_embed_affine_layer(speakers)[:, None].expand(-1, frames, -1)
        around = torch.cat([mean, speaker, known], dim=2)
        around = torch.cat([around, torch.zeros_like(around)])
        guidance = self.config.guidance
        attentions, convolutions = [], []
        for k, (time, step) in enumerate(euler_steps(self.steps)):
            if k:
                yield
            rows = torch.cat([torch.cat([x, x]).to(around), around], dim=2)
            flow, attended, convolved = self.decoder.estimator(
                rows,
                torch.full((1,), time, device=mean.device),
                torch.stack([state.attention[k] for state in states], dim=3).flatten(2, 3),
                torch.stack([state.convolution[k] for state in states], dim=3).flatten(2, 3),
            )
            guided, unguided = flow.float().chunk(2)
            x = x + step * ((1 + guidance) * guided - guidance * unguided)
            attentions.append(attended.to(self.cache_dtype))
            convolutions.append(convolved.to(self.cache_dtype))
        pairs = (2, batch)
        return x, torch.stack(attentions).unflatten(3, pairs), torch.stack(convolutions).unflatten(3, pairs)

    def _trimmed(self, state: FlowState) -> FlowState:
        """Return the state with the prompt and only the newest generated frames in its caches.

        This holds for the encoder's caches. The estimator's cache is cut at the same entries, as in the
        published package. Its newest chunk comes first, so that the newest frames and the end of the prompt
        remain. The estimator's attention has no positions. The first blocks of the encoder have one entry for
        two frames. The published package cuts them as if they had one entry for each frame, so that the
        oldest generated entries remain in place of the newest.
        """
        prompt = state.prompt_frames
        if state.frames <= prompt + GENERATED_FRAMES:
            return state
        encoder = state.encoder
        if self._cuts_first_blocks_by_frames:
            doubled = torch.cat([encoder.first, encoder.first], dim=3)
            kept = _ends(doubled, 3, prompt, GENERATED_FRAMES)
            first = kept[..., : (prompt + GENERATED_FRAMES) // FRAMES_PER_TOKEN, :].clone()
        else:
            tokens = prompt // FRAMES_PER_TOKEN
            first = _ends(encoder.first, 3, tokens, GENERATED_FRAMES // FRAMES_PER_TOKEN)
        second = _ends(encoder.second, 3, prompt, GENERATED_FRAMES)
        return replace(
            state,
            encoder=replace(encoder, first=first, second=second),
            attention=_ends(state.attention, 5, prompt, GENERATED_FRAMES),
        )


def drained(portions: Generator[None, None, T]) -> T:
    """Return the result of a generator after all of its portions."""
    while (made := next_portion(portions)) is None:
        pass
    return made


def next_portion(portions: Generator[None, None, T]) -> T | None:
    """Run the next portion of a generator; return its result after the last one, else None."""
    try:
        return next(portions)
    except StopIteration as end:
        made: T = end.value
        return made


@cache
def euler_steps(steps: int) -> list[tuple[float, float]]:
    """Return times and lengths of steps from 0 to 1, which grow as 1 - cos.
    They are summed in float32, as in the published package.
    """
    times = 1 - torch.cos(torch.linspace(0, 1, steps + 1, device="cpu") * 0.5 * math.pi)
    time, result = times[0], []
    for end in times[1:]:
        step = end - time
        result.append((float(time), float(step)))
        time = time + step
    return result


def _ends(x: Tensor, dim: int, first: int, last: int) -> Tensor:
    """Return the first and the last entries along `dim`."""
    length = x.shape[dim]
    return torch.cat([x.narrow(dim, 0, first), x.narrow(dim, length - last, last)], dim=dim)
