"""A small source-filter vocoder: speech codes in, 24 kHz audio out, a chunk at a time.

A codebook turns each code into acoustic frames of 10 ms (a log-power envelope over mel-spaced
bands, log pitch, voicing). A pulse train and noise, shaped by minimum-phase filters made of these
envelopes, are overlapped and added. All of a stream's past is in its `VocoderState`,
so any split of the codes into chunks gives the same samples.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference_service.models.config import VocoderConfig

FRAME_SECONDS = 0.01
MAX_HZ = 8000.0
"""The voice's own band: the recordings behind the codes are sampled at 16 kHz."""
_FFT = 1024
_FLOOR = -14.0
_MIXED_HZ = (3000.0, 6500.0)
"""Voiced sound turns from pulses to noise between these frequencies."""


def band_hertz(bands: int) -> Tensor:
    """Centre frequencies of the envelope's bands: equally spaced on the mel scale from 0 to 8 kHz."""
    top = 2595 * torch.log10(torch.tensor(1 + MAX_HZ / 700, dtype=torch.float64))
    return 700 * (10 ** (torch.linspace(0, 1, bands, dtype=torch.float64) * top / 2595) - 1)


@dataclass
class VocoderState:
    """Everything one stream remembers between chunks."""

    phase: float
    """Position in the pitch cycle, 0 to 1."""
    carry: float
    """Amplitude of a pulse that falls between the last sample and the next."""
    excitation: Tensor
    """The last 10 ms of pulses and of noise, [2, hop]."""
    overlap: Tensor
    """Samples already begun by earlier frames, [fft]."""
    noise: torch.Generator

    def reset(self) -> None:
        """Silence: the next chunk begins a new turn. The noise goes on where it was."""
        self.excitation.zero_()
        self.overlap.zero_()
        self.phase = self.carry = 0.0

    def mark(self) -> Callable[[], None]:
        """A way back to how it is now, unless it is reset."""
        before, noise = dict(vars(self)), self.noise.get_state()

        def go_back() -> None:
            vars(self).update(before)
            self.noise.set_state(noise)

        return go_back


class Vocoder(nn.Module):
    """Codes at 25 per second -> float32 audio in [-1, 1] at the configured rate."""

    _to_bins: Tensor
    _noisy: Tensor
    _fade: Tensor

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        self.hop = round(config.sample_rate_hz * FRAME_SECONDS)
        self.features = config.bands + 2
        self.codebook = nn.Parameter(torch.zeros(config.codes, config.frames_per_code, self.features))
        self.register_buffer("_to_bins", self._band_to_bin(), persistent=False)
        self.register_buffer("_noisy", self._noise_share(), persistent=False)
        self.register_buffer("_fade", self._top_fade(), persistent=False)

    def _bin_hertz(self) -> Tensor:
        return torch.arange(_FFT // 2 + 1, dtype=torch.float64) * self.config.sample_rate_hz / _FFT

    def _band_to_bin(self) -> Tensor:
        """Linear interpolation from bands to FFT bins, [bands, bins]; above 8 kHz the top band goes on."""
        centres, hertz = band_hertz(self.config.bands), self._bin_hertz()
        right = torch.searchsorted(centres, hertz).clamp(1, len(centres) - 1)
        part = ((hertz - centres[right - 1]) / (centres[right] - centres[right - 1])).clamp(0, 1)
        weights = torch.zeros(len(centres), len(hertz), dtype=torch.float64)
        weights[right - 1, torch.arange(len(hertz))] = 1 - part
        weights[right, torch.arange(len(hertz))] += part
        return weights.float()

    def _noise_share(self) -> Tensor:
        """Share of noise power in voiced sound per FFT bin."""
        low, high = _MIXED_HZ
        return ((self._bin_hertz() - low) / (high - low)).clamp(0.02, 0.95).float()

    def _top_fade(self) -> Tensor:
        """Log power taken off above 8 kHz, where the codebook knows nothing."""
        return -((self._bin_hertz() - MAX_HZ) / 200).clamp(min=0).float()

    def initial_state(self, seed: int) -> VocoderState:
        """The state of a stream that has said nothing; its noise depends on `seed` alone."""
        generator = torch.Generator().manual_seed(seed)
        return VocoderState(0.0, 0.0, torch.zeros(2, self.hop), torch.zeros(_FFT), generator)

    def decode(self, codes: list[list[int]], states: list[VocoderState]) -> list[Tensor]:
        """One chunk of each stream, any lengths; `states` move on in place. Float32 audio on the CPU."""
        audio: list[Tensor] = [torch.zeros(0)] * len(codes)
        for length in sorted({len(chunk) for chunk in codes if chunk}):
            rows = [i for i, chunk in enumerate(codes) if len(chunk) == length]
            ids = torch.tensor([codes[i] for i in rows], device=self.codebook.device)
            frames = self.codebook[ids].flatten(1, 2).float().cpu()
            for row, sound in zip(rows, self.synthesise(frames, [states[i] for i in rows]), strict=True):
                audio[row] = sound
        return audio

    def synthesise(self, frames: Tensor, states: list[VocoderState]) -> Tensor:
        """Audio [batch, frames * hop] of acoustic frames [batch, frames, bands + 2]."""
        bands = self.config.bands
        voiced = frames[..., bands + 1] > 0
        pitch = frames[..., bands].clamp(4.0, 6.3).exp()
        pulses = torch.stack([self._pulses(p, v, s) for p, v, s in zip(pitch, voiced, states, strict=True)])
        noise = torch.stack([torch.randn(pulses.shape[1], generator=state.noise) for state in states])
        source = torch.stack([pulses, noise], dim=1)
        past = torch.stack([state.excitation for state in states])
        for state, sound in zip(states, source, strict=True):
            state.excitation = sound[:, -self.hop :].clone()
        window = torch.hann_window(2 * self.hop)
        grains = torch.cat([past, source], dim=2).unfold(2, 2 * self.hop, self.hop) * window
        log_power = (frames[..., :bands].clamp(_FLOOR, 8.0) @ self._to_bins.cpu() + self._fade.cpu()).clamp(
            min=_FLOOR
        )
        noisy = torch.where(voiced[..., None], self._noisy.cpu(), torch.ones(1))
        shape = minimum_phase(log_power)
        spectrum = torch.fft.rfft(grains[:, 0], _FFT) * (1 - noisy).sqrt()
        spectrum = (spectrum + torch.fft.rfft(grains[:, 1], _FFT) * noisy.sqrt()) * shape
        return self._overlap(torch.fft.irfft(spectrum, _FFT), states)

    def _pulses(self, pitch: Tensor, voiced: Tensor, state: VocoderState) -> Tensor:
        """One pulse of unit power per pitch period where voiced, [frames * hop]; `state`'s cycle goes on."""
        step = (pitch.double() / self.config.sample_rate_hz).repeat_interleave(self.hop)
        cycle = state.phase + step.cumsum(0)
        whole = cycle.floor()
        new = torch.diff(whole, prepend=torch.zeros(1, dtype=torch.float64)) > 0
        late = (cycle - whole) / step
        size = torch.where(new & voiced.repeat_interleave(self.hop), step.rsqrt(), 0.0)
        state.phase = float(cycle[-1] - whole[-1])
        # The pulse fell `late` samples ago; delayed by one sample it lies between this sample and the next.
        after = size * (1 - late)
        pulses = size * late + torch.cat([torch.tensor([state.carry], dtype=torch.float64), after[:-1]])
        state.carry = float(after[-1])
        return pulses.float()

    def _overlap(self, grains: Tensor, states: list[VocoderState]) -> Tensor:
        """Adds filtered grains [batch, frames, fft] at every hop, onto what earlier chunks began."""
        batch, frames, size = grains.shape
        total = (frames - 1) * self.hop + size
        added = F.fold(
            grains.transpose(1, 2), (1, total), kernel_size=(1, size), stride=(1, self.hop)
        ).reshape(batch, total)
        added[:, :size] += torch.stack([state.overlap for state in states])
        ready = frames * self.hop
        for state, row in zip(states, added, strict=True):
            state.overlap = F.pad(row[ready:], (0, size - (total - ready))).clone()
        return added[:, :ready].clamp(-1, 1)


def minimum_phase(log_power: Tensor) -> Tensor:
    """Complex spectrum [..., bins] of the minimum-phase filter with this log power (by its cepstrum)."""
    cepstrum = torch.fft.irfft(log_power / 2, _FFT)
    fold = torch.zeros(_FFT)
    fold[0] = fold[_FFT // 2] = 1
    fold[1 : _FFT // 2] = 2
    spectrum: Tensor = torch.fft.rfft(cepstrum * fold, _FFT).exp()
    return spectrum
