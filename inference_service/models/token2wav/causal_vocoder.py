"""Streaming of the causal variant of HiFT, which needs no cross-fade."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from inference_service.models.token2wav.config import HOP, MELS
from inference_service.models.token2wav.hift import Hift
from inference_service.models.token2wav.noise import SourceNoise

_PITCH_AHEAD = 3
_MEL_AHEAD = 4
_WAVE_AHEAD = 1
"""Later frames that a frame needs: for its pitch, its shape, and its last samples."""
_PAST = 31
"""Frames that influence later ones."""
KEPT_SOURCE = _PAST + _WAVE_AHEAD + _MEL_AHEAD
KEPT_MEL = KEPT_SOURCE + _PITCH_AHEAD
"""Limit of frames in a stream's state."""


@dataclass(frozen=True)
class CausalState:
    """The state of one stream: `mel` [80, n], and `source`, the excitation of its first frames.

    The excitation ended at `cycles` [harmonics] (float64). Of the kept frames, `said` have been output.
    `start` earlier frames were dropped.
    """

    mel: Tensor
    source: Tensor
    cycles: Tensor
    said: int = 0
    start: int = 0

    @property
    def sourced(self) -> int:
        """The number of kept frames with an excitation."""
        return len(self.source) // HOP

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; streams of equal shape can share a batch."""
        return self.mel.shape[1], self.sourced, self.said

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the state."""
        return [self.mel, self.source, self.cycles]

    def holding(self, tensors: Sequence[Tensor]) -> "CausalState":
        """Return a state at the same place in a stream, with other tensors."""
        mel, source, cycles = tensors
        return CausalState(mel, source, cycles, self.said, self.start)


class CausalVocoder:
    """The causal vocoder, eight frames late; the output does not depend on the chunks."""

    def __init__(self, hift: Hift, noise: SourceNoise) -> None:
        self._hift = hift
        self._noise = noise

    def initial_state(self) -> CausalState:
        """Return the state of a new stream."""
        weight = self._hift.conv_post.weight
        cycles = weight.new_zeros(self._hift.config.harmonics + 1, dtype=torch.float64)
        return CausalState(weight.new_zeros(MELS, 0), weight.new_zeros(0), cycles)

    def advance(
        self, mel: Tensor, states: list[CausalState], *, is_last: bool
    ) -> tuple[Tensor, list[CausalState]]:
        """Advance streams of one shape by frames [batch, 80, n]; return samples [batch, ...] and
        new states.
        """
        return self.advance_from(self.noise_begins(states), mel, states, is_last=is_last)

    def noise_begins(self, states: list[CausalState]) -> Tensor:
        """Return the start of each stream's noise, int64 [batch] on the device."""
        return self._noise.begins([HOP * (state.start + state.sourced) for state in states])

    def moved(self, state: CausalState, samples: int, tensors: Sequence[Tensor]) -> CausalState:
        """Return the state after a chunk of `samples` samples that left these tensors."""
        after = state.holding(tensors)
        # All received frames are kept, except those before the last `_PAST` frames of the output.
        ready = state.said + samples // HOP
        cut = max(0, ready - _PAST)
        return replace(after, said=ready - cut, start=state.start + cut)

    def advance_from(
        self, begins: Tensor, mel: Tensor, states: list[CausalState], *, is_last: bool
    ) -> tuple[Tensor, list[CausalState]]:
        """Advance as `advance` does, with noise that begins at rows `begins`, int64 [batch]."""
        said = states[0].said
        mel = torch.cat([torch.stack([state.mel for state in states]), mel], dim=2)
        frames = mel.shape[2]
        source, cycles = self._source(mel, states, begins, is_last=is_last)
        shaped = frames if is_last else source.shape[1] // HOP - _MEL_AHEAD
        ready = frames if is_last else max(shaped - _WAVE_AHEAD, said)
        samples = source[:, :0]
        if ready > said:
            seen = F.pad(mel, (0, _MEL_AHEAD)) if is_last else mel[:, :, : shaped + _MEL_AHEAD]
            samples = self._hift.decode(seen, source[:, : HOP * shaped])[:, HOP * said : HOP * ready]
        cut = max(0, ready - _PAST)
        return samples, [
            CausalState(
                mel[i, :, cut:].clone(),
                source[i, HOP * cut :].clone(),
                cycles[i].clone(),
                ready - cut,
                state.start + cut,
            )
            for i, state in enumerate(states)
        ]

    def _source(
        self, mel: Tensor, states: list[CausalState], begins: Tensor, *, is_last: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the excitation [batch, samples] up to the known pitch, and its cycles at the end."""
        source = torch.stack([state.source for state in states])
        cycles = torch.stack([state.cycles for state in states])
        ahead = F.pad(mel, (0, _PITCH_AHEAD)) if is_last else mel
        if ahead.shape[2] <= _PITCH_AHEAD:
            return source, cycles
        f0 = self._hift.f0_predictor(ahead.double())[:, states[0].sourced :].to(mel.dtype)
        if not f0.shape[1]:
            return source, cycles
        periods = (self._hift.cycles(f0.double()) + cycles[:, :, None]) % 1
        noise = self._noise.read(begins, HOP * f0.shape[1])
        new = self._hift.excite(periods.repeat_interleave(HOP, 2), f0, noise)
        return torch.cat([source, new], dim=1), periods[:, :, -1]
