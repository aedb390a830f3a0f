"""HiFT: mel frames to a waveform at 24 kHz, by harmonics of the pitch and an inverse Fourier transform.

Names of parameters are those of the published `hift.pt`, weight norms folded. Two variants are published; the
causal one belongs to `minicpmo-utils` 1.0.7. Streams of equal length run in one batch; the module holds no
state of a stream.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inference_service.models.token2wav.config import HOP, MELS, RATE_HZ, VocoderConfig

_RATES = (8, 5, 3)
_KERNELS = (16, 11, 7)
_RESBLOCK_KERNELS = (3, 7, 11)
_SOURCE_KERNELS = (7, 7, 11)
_SOURCE_DOWN = ((30, 15, 7), (6, 3, 1), (1, 1, 0))
_DILATIONS = (1, 3, 5)
_FFT = 16
_FFT_HOP = 4
_LIMIT = 0.99
_LOUDEST = 100.0
_SINE = 0.1
_NOISE = 0.003
_VOICED_HZ = 10.0
_SLOPE = 0.1


class Snake(nn.Module):
    """The activation x + sin^2(a x) / a."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Return the activation of `x` [batch, channels, time]."""
        alpha = self.alpha[None, :, None]
        return x + torch.sin(x * alpha).square() / (alpha + 1e-9)


class Conv(nn.Conv1d):
    """A convolution of equal length; the causal one reads only the past."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, dilation: int = 1, *, is_causal: bool = False
    ) -> None:
        super().__init__(inputs, outputs, kernel, dilation=dilation)
        reach = (kernel - 1) * dilation
        self._sides = (reach, 0) if is_causal else (reach // 2, reach - reach // 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return [batch, outputs, time] for `x` [batch, inputs, time]."""
        return super().forward(F.pad(x, self._sides))


class ResBlock(nn.Module):
    """Three pairs of convolutions, each with a residual."""

    def __init__(self, channels: int, kernel: int, *, is_causal: bool) -> None:
        super().__init__()

        def conv(dilation: int) -> Conv:
            return Conv(channels, channels, kernel, dilation, is_causal=is_causal)

        self.convs1 = nn.ModuleList(conv(dilation) for dilation in _DILATIONS)
        self.convs2 = nn.ModuleList(conv(1) for _ in _DILATIONS)
        self.activations1 = nn.ModuleList(Snake(channels) for _ in _DILATIONS)
        self.activations2 = nn.ModuleList(Snake(channels) for _ in _DILATIONS)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output for `x` [batch, channels, time]."""
        stages = zip(self.activations1, self.convs1, self.activations2, self.convs2, strict=True)
        for first, conv1, second, conv2 in stages:
            x = x + conv2(second(conv1(first(x))))
        return x


class F0Predictor(nn.Module):
    """The pitch of each mel frame in Hz; the causal variant looks three frames ahead, in float64."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        width, is_causal = config.f0_channels, config.is_causal
        first = nn.Conv1d(MELS, width, 4) if is_causal else Conv(MELS, width, 3)
        convs = [first, *(Conv(width, width, 3, is_causal=is_causal) for _ in range(4))]
        self.condnet = nn.Sequential(*(layer for conv in convs for layer in (conv, nn.ELU())))
        self.classifier = nn.Linear(width, 1)

    def forward(self, mel: Tensor) -> Tensor:
        """Return the pitch [batch, frames] of `mel` [batch, 80, frames]; the causal variant needs three more
        frames.
        """
        pitch: Tensor = self.classifier(self.condnet(mel).transpose(1, 2))
        return pitch[..., 0].abs()


class Source(nn.Module):
    """Harmonics of the pitch as one wave."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.l_linear = nn.Linear(config.harmonics + 1, 1)

    def forward(self, cycles: Tensor, f0: Tensor, noise: Tensor) -> Tensor:
        """Return the wave of `cycles` [batch, harmonics, samples], `f0` [batch, samples] and `noise` [batch,
        samples, harmonics].

        The shape is [batch, samples].
        """
        voiced = (f0 > _VOICED_HZ).to(noise)[:, :, None]
        waves = _SINE * torch.sin(2 * math.pi * cycles).to(noise).transpose(1, 2)
        amplitude = voiced * _NOISE + (1 - voiced) * _SINE / 3
        merged: Tensor = self.l_linear(waves * voiced + amplitude * noise)
        return torch.tanh(merged)[:, :, 0]


class Hift(nn.Module):
    """The vocoder's network: `source` gives the excitation, `decode` the waveform."""

    def __init__(self, config: VocoderConfig) -> None:
        super().__init__()
        self.config = config
        is_causal, channels = config.is_causal, config.channels
        self.f0_predictor = F0Predictor(config)
        if is_causal:
            self.f0_predictor.double()
        self.m_source = Source(config)
        self.conv_pre = nn.Conv1d(MELS, channels, 5) if is_causal else Conv(MELS, channels, 7)
        self.ups = nn.ModuleList()
        self.source_downs = nn.ModuleList()
        self.source_resblocks = nn.ModuleList()
        self.resblocks = nn.ModuleList()
        for i, (rate, kernel) in enumerate(zip(_RATES, _KERNELS, strict=True)):
            wide, narrow = channels >> i, channels >> (i + 1)
            up: nn.Module
            if is_causal:
                up = Conv(wide, narrow, kernel, is_causal=True)
            else:
                up = nn.ConvTranspose1d(wide, narrow, kernel, rate, padding=(kernel - rate) // 2)
            self.ups.append(up)
            size, stride, padding = _SOURCE_DOWN[i]
            padding = 0 if is_causal else padding
            self.source_downs.append(nn.Conv1d(_FFT + 2, narrow, size, stride, padding))
            self.source_resblocks.append(ResBlock(narrow, _SOURCE_KERNELS[i], is_causal=is_causal))
            self.resblocks.extend(ResBlock(narrow, size, is_causal=is_causal) for size in _RESBLOCK_KERNELS)
        self.conv_post = Conv(channels >> len(_RATES), _FFT + 2, 7, is_causal=is_causal)

    def cycles(self, f0: Tensor) -> Tensor:
        """Return the periods of each harmonic since the first frame, at the end of each frame.

        `f0` is [batch, frames] in Hz; the result is [batch, harmonics, frames] of the same dtype.
        """
        harmonics = torch.arange(1, self.config.harmonics + 2, device=f0.device, dtype=f0.dtype)
        return HOP * ((f0[:, None] * harmonics[None, :, None] / RATE_HZ) % 1).cumsum(2)

    def excite(self, cycles: Tensor, f0: Tensor, noise: Tensor) -> Tensor:
        """Return the excitation [batch, 480 frames].

        `cycles` [batch, harmonics, 480 frames], `f0` [batch, frames], `noise` [batch, 480 frames, harmonics].
        """
        source: Tensor = self.m_source(cycles, f0.repeat_interleave(HOP, 1), noise)
        return source

    def decode(self, mel: Tensor, source: Tensor) -> Tensor:
        """Return the waveform [batch, 480 frames] of `mel` [batch, 80, frames] and `source` [batch, 480
        frames].

        In the causal variant, `mel` has four more frames.
        """
        spectrum = self._analysed(source)
        x = self.conv_pre(mel)
        for i, rate in enumerate(_RATES):
            x = F.leaky_relu(x, _SLOPE)
            x = self.ups[i](x.repeat_interleave(rate, 2) if self.config.is_causal else x)
            if i == len(_RATES) - 1:
                x = F.pad(x, (1, 0), mode="reflect")
            _, stride, _ = _SOURCE_DOWN[i]
            excitation = F.pad(spectrum, (stride - 1, 0)) if self.config.is_causal else spectrum
            excitation = self.source_resblocks[i](self.source_downs[i](excitation))
            x = x + excitation[:, :, : x.shape[2]]
            blocks = self.resblocks[3 * i : 3 * i + 3]
            x = torch.stack([block(x) for block in blocks]).sum(0) / len(blocks)
        return self._synthesised(self.conv_post(F.leaky_relu(x)))

    def _analysed(self, source: Tensor) -> Tensor:
        """Return the spectrum [batch, 18, 120 frames + 1] of the excitation."""
        window = torch.hann_window(_FFT, device=source.device)
        spectrum = torch.stft(source, _FFT, _FFT_HOP, window=window, return_complex=True)
        return torch.cat([spectrum.real, spectrum.imag], dim=1)

    def _synthesised(self, x: Tensor) -> Tensor:
        magnitude, phase = x.split(_FFT // 2 + 1, dim=1)
        magnitude, phase = magnitude.exp().clamp(max=_LOUDEST), phase.sin()
        spectrum = torch.complex(magnitude * phase.cos(), magnitude * phase.sin())
        window = torch.hann_window(_FFT, device=x.device)
        grains = torch.fft.irfft(spectrum, _FFT, dim=1) * window[:, None]
        weights = window.square()[None, :, None].expand(1, -1, x.shape[2])
        wave = _overlapped(grains) / _overlapped(weights)
        return wave.clamp(-_LIMIT, _LIMIT)


def _overlapped(grains: Tensor) -> Tensor:
    """Overlap-add grains [batch, 16, n] at a hop of 4 samples; return [batch, 4 (n - 1)].

    As in `torch.istft`, which synchronises with the device, the first and the last 8 samples are left out.
    """
    count = grains.shape[2]
    added = grains.new_zeros(len(grains), _FFT_HOP, count + _FFT // _FFT_HOP - 1)
    for number, part in enumerate(grains.split(_FFT_HOP, dim=1)):
        added[:, :, number : number + count] += part
    return added.transpose(1, 2).flatten(1)[:, _FFT // 2 : -_FFT // 2]
