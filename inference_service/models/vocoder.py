"""A small source-filter vocoder: speech codes in, 24 kHz audio out, a chunk at a time.

A codebook turns each code into acoustic frames of 10 ms (a log-power envelope over mel-spaced
bands, log pitch, voicing). A pulse train and noise, shaped by minimum-phase filters made of these
envelopes, are overlapped and added. The filters of all codes are made once, and streams are
decoded in batches. All of a stream's past is in its `VocoderState`, so any split of the codes into
chunks gives the same samples.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from inference_service.models.config import VocoderConfig

FRAME_SECONDS = 0.01
MAX_HZ = 8000.0
"""Bandwidth of the voice: the recordings behind the codes are sampled at 16 kHz."""
_FFT = 1024
_FLOOR = -14.0
_TOGETHER = 4
"""Limit of streams in one pass: the arrays of more do not fit into the processor's cache."""
_MIXED_HZ = (3000.0, 6500.0)
"""Frequencies between which voiced sound turns from pulses to noise."""


def band_hertz(bands: int) -> Tensor:
    """Return centre frequencies of the envelope's bands, equally spaced on the mel scale from 0 to 8 kHz."""
    top = 2595 * torch.log10(torch.tensor(1 + MAX_HZ / 700, dtype=torch.float64))
    return 700 * (10 ** (torch.linspace(0, 1, bands, dtype=torch.float64) * top / 2595) - 1)


def filter_bytes(config: VocoderConfig) -> int:
    """Return the bytes of the filters of all codes."""
    return config.codes * config.frames_per_code * 2 * (_FFT // 2 + 1) * torch.complex64.itemsize


@dataclass
class VocoderState:
    """The state of one stream between chunks."""

    phase: float
    """Position in the pitch cycle, 0 to 1."""
    carry: float
    """Amplitude of a pulse that falls between the last sample and the next."""
    excitation: Tensor
    """The last 10 ms of pulses and of noise, [2, hop]."""
    overlap: Tensor
    """Samples to which earlier frames have contributed, [fft - hop]."""
    noise: torch.Generator

    def reset(self) -> None:
        """Reset to silence: the next chunk begins a new turn. The noise continues."""
        self.excitation.zero_()
        self.overlap.zero_()
        self.phase = self.carry = 0.0

    def mark(self) -> Callable[[], None]:
        """Return a function that restores the current state; it cannot undo `reset`."""
        before, noise = dict(vars(self)), self.noise.get_state()

        def go_back() -> None:
            vars(self).update(before)
            self.noise.set_state(noise)

        return go_back


@dataclass(frozen=True)
class _Sounds:
    """Values for all acoustic frames of the codebook, [codes * frames_per_code, ...]."""

    step: Tensor
    """Pitch periods per sample, float64."""
    size: Tensor
    """Amplitude of a pulse of unit power, float64; 0 where unvoiced."""
    most: int
    """Limit of pulses in a frame."""
    pulses: Tensor
    """Filter of pulses, complex [..., bins]."""
    noise: Tensor
    """Filter of noise, complex [..., bins]."""


class Vocoder(nn.Module):
    """Decodes codes at 25 per second to float32 audio in [-1, 1] at the configured rate, on the CPU.

    The codebook must not change after the first sound.
    """

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.hop = round(config.sample_rate_hz * FRAME_SECONDS)
        self._window = torch.hann_window(2 * self.hop)
        self.codebook = nn.Parameter(torch.zeros(config.codes, config.frames_per_code, config.bands + 2))

    def initial_state(self, seed: int) -> VocoderState:
        """Return the state of a new stream; its noise depends only on `seed`."""
        generator = torch.Generator().manual_seed(seed)
        return VocoderState(0.0, 0.0, torch.zeros(2, self.hop), torch.zeros(_FFT - self.hop), generator)

    def decode(self, codes: list[list[int]], states: list[VocoderState]) -> list[Tensor]:
        """Decode one chunk of each stream, of any lengths, to float32 audio; `states` advance in place."""
        audio: list[Tensor] = [torch.zeros(0)] * len(codes)
        for length in sorted({len(chunk) for chunk in codes if chunk}):
            alike = [i for i, chunk in enumerate(codes) if len(chunk) == length]
            for begin in range(0, len(alike), _TOGETHER):
                rows = alike[begin : begin + _TOGETHER]
                said = self._say(torch.tensor([codes[i] for i in rows]), [states[i] for i in rows])
                for row, sound in zip(rows, said, strict=True):
                    audio[row] = sound
        return audio

    @cached_property
    def _sounds(self) -> _Sounds:
        bands = self.config.bands
        frames = self.codebook.detach().float().cpu().flatten(0, 1)
        voiced = frames[:, bands + 1] > 0
        step = frames[:, bands].clamp(4.0, 6.3).exp().double() / self.config.sample_rate_hz
        hertz = torch.arange(_FFT // 2 + 1, dtype=torch.float64) * self.config.sample_rate_hz / _FFT
        log_power = frames[:, :bands].clamp(_FLOOR, 8.0) @ _band_to_bin(bands, hertz) + _top_fade(hertz)
        noisy = torch.where(voiced[:, None], _noise_share(hertz), torch.ones(1))
        shape = _minimum_phase(log_power.clamp(min=_FLOOR))
        size, most = torch.where(voiced, step.rsqrt(), 0.0), 1 + math.floor(float(step.max()) * self.hop)
        return _Sounds(step, size, most, shape * (1 - noisy).sqrt(), shape * noisy.sqrt())

    def _say(self, codes: Tensor, states: list[VocoderState]) -> Tensor:
        """Return audio [batch, samples] of codes [batch, codes]."""
        of_code, hop = self.config.frames_per_code, self.hop
        frames = (codes[:, :, None] * of_code + torch.arange(of_code)).flatten(1)
        source = torch.empty(len(states), 2, hop + frames.shape[1] * hop)
        source[:, :, :hop] = torch.stack([state.excitation for state in states])
        source[:, 0, hop:] = self._pulses(frames, states)
        for row, state in zip(source, states, strict=True):
            torch.randn(frames.shape[1] * hop, generator=state.noise, out=row[1, hop:])
            state.excitation = row[:, -hop:].clone()
        pulses, noise = torch.fft.rfft(source.unfold(2, 2 * hop, hop) * self._window, _FFT).unbind(1)
        for spectrum, filters in ((pulses, self._sounds.pulses), (noise, self._sounds.noise)):
            spectrum *= filters.index_select(0, frames.flatten()).view_as(spectrum)
        return self._overlap(torch.fft.irfft(pulses + noise, _FFT), states)

    def _pulses(self, frames: Tensor, states: list[VocoderState]) -> Tensor:
        """Return a pulse for each pitch period where voiced, [batch, samples]; advance the phase of
        `states`.
        """
        step, size = self._sounds.step[frames, None], self._sounds.size[frames, None]
        begin = torch.tensor([state.phase for state in states], dtype=torch.float64)
        cycle = torch.cat([begin[:, None], begin[:, None] + (step[..., 0] * self.hop).cumsum(1)], 1)
        whole = cycle.floor()
        # All pulses that may fall into a frame, in samples from its start.
        number = torch.arange(1, 1 + self._sounds.most)
        at = (whole[:, :-1, None] + number - cycle[:, :-1, None]) / step
        falls = number <= torch.diff(whole)[..., None]
        sample = at.ceil().clamp(1, self.hop)
        late = (sample - at).clamp(min=0)
        size = torch.where(falls, size, 0.0)
        # The pulse fell `late` samples ago; delayed by one sample it lies between this sample and the next.
        place = (sample.long() - 1 + self.hop * torch.arange(frames.shape[1])[:, None]).flatten(1)
        pulses = torch.zeros(len(states), frames.shape[1] * self.hop + 1, dtype=torch.float64)
        pulses[:, 0] = torch.tensor([state.carry for state in states], dtype=torch.float64)
        pulses.scatter_add_(1, place, (size * late).flatten(1))
        pulses.scatter_add_(1, place + 1, (size * (1 - late)).flatten(1))
        for state, phase, carry in zip(
            states, (cycle - whole)[:, -1].tolist(), pulses[:, -1].tolist(), strict=True
        ):
            state.phase, state.carry = phase, carry
        return pulses[:, :-1].float()

    def _overlap(self, grains: Tensor, states: list[VocoderState]) -> Tensor:
        """Add filtered grains [batch, frames, fft] at every hop to the overlap of earlier chunks."""
        batch, frames, size = grains.shape
        hops = -(-size // self.hop)
        added = torch.zeros(batch, frames + hops - 1, self.hop)
        flat = added.flatten(1)
        flat[:, : size - self.hop] = torch.stack([state.overlap for state in states])
        for number in range(hops):
            part = grains[..., number * self.hop : (number + 1) * self.hop]
            added[:, number : number + frames, : part.shape[2]] += part
        ready = frames * self.hop
        for state, row in zip(states, flat, strict=True):
            state.overlap = row[ready : ready + size - self.hop].clone()
        return flat[:, :ready].clamp(-1, 1)


def _band_to_bin(bands: int, hertz: Tensor) -> Tensor:
    """Return weights of linear interpolation from bands to FFT bins, [bands, bins]; above 8 kHz the top band
    continues.
    """
    centres = band_hertz(bands)
    right = torch.searchsorted(centres, hertz).clamp(1, len(centres) - 1)
    part = ((hertz - centres[right - 1]) / (centres[right] - centres[right - 1])).clamp(0, 1)
    weights = torch.zeros(len(centres), len(hertz), dtype=torch.float64)
    weights[right - 1, torch.arange(len(hertz))] = 1 - part
    weights[right, torch.arange(len(hertz))] += part
    return weights.float()


def _noise_share(hertz: Tensor) -> Tensor:
    """Return the share of noise power in voiced sound by FFT bin."""
    low, high = _MIXED_HZ
    return ((hertz - low) / (high - low)).clamp(0.02, 0.95).float()


def _top_fade(hertz: Tensor) -> Tensor:
    """Return the log power to subtract above 8 kHz, where the codebook has no data."""
    return -((hertz - MAX_HZ) / 200).clamp(min=0).float()


def _minimum_phase(log_power: Tensor) -> Tensor:
    """Return the complex spectrum [..., bins] of the minimum-phase filter with this log power (by its
    cepstrum).
    """
    cepstrum = torch.fft.irfft(log_power / 2, _FFT)
    fold = torch.zeros(_FFT)
    fold[0] = fold[_FFT // 2] = 1
    fold[1 : _FFT // 2] = 2
    spectrum: Tensor = torch.fft.rfft(cepstrum * fold, _FFT).exp()
    return spectrum
