"""Streaming of HiFT with cross-fades between chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from inference_service.models.token2wav.config import HOP, MELS
from inference_service.models.token2wav.hift import Hift
from inference_service.models.token2wav.noise import SourceNoise

MEL_PAST = 8
"""Mel frames that are repeated in the next chunk; fewer cannot be cross-faded."""
FADE = MEL_PAST * HOP
"""Samples of a cross-fade."""


@dataclass(frozen=True)
class FadedState:
    """The state of one stream between chunks.

    `mel` [80, 8], `source` [3840], `speech` [3840]: repeated at the start of the next chunk; `cycles`
    [harmonics]: the phase of the excitation at its end. All are empty before the first chunk.
    """

    mel: Tensor
    source: Tensor
    speech: Tensor
    cycles: Tensor
    chunks: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape; streams of equal shape can share a batch."""
        return tuple(self.mel.shape)

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors of the state."""
        return [self.mel, self.source, self.speech, self.cycles]

    def holding(self, tensors: Sequence[Tensor]) -> "FadedState":
        """Return a state at the same place in a stream, with other tensors."""
        mel, source, speech, cycles = tensors
        return FadedState(mel, source, speech, cycles, self.chunks)


class FadedVocoder:
    """The vocoder with look-ahead: a chunk ends 8 frames early, and the next one repeats these.

    In the published package, the excitation of every chunk begins at phase zero, its phase rests for the last
    half frame, and the weights of a cross-fade sum to 1.08. Here the phase is continuous and the sum is one,
    unless `reference_quirks` is set.
    """

    def __init__(self, hift: Hift, noise: SourceNoise, *, reference_quirks: bool) -> None:
        self._hift = hift
        self._noise = noise
        self._phase_goes_on = not reference_quirks
        window = torch.hamming_window(2 * FADE, periodic=False, dtype=torch.float64, device="cpu")
        fade_in, fade_out = window.chunk(2)
        total = 1 if reference_quirks else fade_in + fade_out
        self._fades = torch.stack([fade_in, fade_out]) / total

    def initial_state(self) -> FadedState:
        """Return the state of a new stream."""
        nothing = self._hift.conv_post.weight.new_zeros(0)
        return FadedState(nothing.expand(MELS, 0), nothing, nothing, nothing)

    def advance(
        self, mel: Tensor, states: list[FadedState], *, is_last: bool
    ) -> tuple[Tensor, list[FadedState]]:
        """Advance streams of one shape by frames [batch, 80, n]; return samples [batch, ...] and new states.

        Unless `is_last`, the kept and the new frames must together be at least 8.
        """
        return self.advance_from(self.noise_begins(states), mel, states, is_last=is_last)

    def noise_begins(self, states: list[FadedState]) -> Tensor:
        """Return the start of each stream's noise, int64 [batch] on the device."""
        return self._noise.chunk_begins([state.chunks for state in states])

    def moved(self, state: FadedState, samples: int, tensors: Sequence[Tensor]) -> FadedState:
        """Return the state after a chunk of `samples` samples that left these tensors."""
        return replace(state.holding(tensors), chunks=state.chunks + 1)

    def advance_from(
        self, begins: Tensor, mel: Tensor, states: list[FadedState], *, is_last: bool
    ) -> tuple[Tensor, list[FadedState]]:
        """Advance as `advance` does, with noise that begins at rows `begins`, int64 [batch]."""
        mel = torch.cat([torch.stack([state.mel for state in states]), mel], dim=2)
        source, cycles = self._source(mel, states, begins)
        speech = self._hift.decode(mel, source)
        said = torch.stack([state.speech for state in states])
        if said.shape[1]:
            if self._fades.device != speech.device:
                self._fades = self._fades.to(speech.device)
            begin = speech[:, :FADE] * self._fades[0] + said * self._fades[1]
            speech = torch.cat([begin.to(speech), speech[:, FADE:]], dim=1)
        new = [
            FadedState(
                mel[i, :, -MEL_PAST:].clone(),
                source[i, -FADE:].clone(),
                speech[i, -FADE:].clone(),
                cycles[i].clone(),
                state.chunks + 1,
            )
            for i, state in enumerate(states)
        ]
        return (speech if is_last else speech[:, :-FADE]), new

    def _source(self, mel: Tensor, states: list[FadedState], begins: Tensor) -> tuple[Tensor, Tensor]:
        """Return the excitation [batch, samples] after its known beginning, and its cycles at the end."""
        f0 = self._hift.f0_predictor(mel)
        known = torch.stack([state.source for state in states])
        overlap = known.shape[1]
        cycles = self._cycles(f0)
        if overlap and self._phase_goes_on:
            stand = torch.stack([state.cycles for state in states])
            cycles = cycles + (stand - cycles[:, :, overlap - 1])[:, :, None]
        noise = self._noise.read(begins, cycles.shape[2])
        source = self._hift.excite(cycles, f0, noise)
        source = torch.cat([known, source[:, overlap:]], dim=1)
        return source, cycles[:, :, -1] % 1

    def _cycles(self, f0: Tensor) -> Tensor:
        """Return periods since the start, [batch, harmonics, samples], linear between the frames' middles."""
        if not self._phase_goes_on:
            return F.interpolate(self._hift.cycles(f0), scale_factor=HOP, mode="linear")
        # One more frame continues the phase through the second half of the last one.
        longer = torch.cat([f0, f0[:, -1:]], dim=1).double()
        cycles = F.interpolate(self._hift.cycles(longer), scale_factor=HOP, mode="linear")[:, :, :-HOP]
        return (cycles % 1).to(f0)
