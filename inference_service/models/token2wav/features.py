"""Features of a voice prompt: three spectra of its recording.

Formulas as in the packages that the weights were trained with: Whisper's log-mel with 128 bands for the
speech tokenizer, Kaldi's filter bank (`compute-fbank-feats` without dither) for the speaker encoder, and
HiFi-GAN's log-mel at 24 kHz for the flow.
"""

import math
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

from inference_service.models.minicpmo.mel import log10_mel, normalised
from inference_service.models.token2wav.config import HOP, MELS, RATE_HZ

HEARD_HZ = 16_000
"""Sample rate of the tokenizer and the speaker encoder."""
TOKENIZER_BANDS = 128

_FFT = 1920
_TOP_HZ = 8000
_QUIETEST = 1e-5
_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99

Array = NDArray[np.float32]


def tokenizer_mel(pcm: Array) -> Array:
    """Return log-mel [128, samples // 160] of sound at 16 kHz, for the speech tokenizer."""
    mel = log10_mel(pcm, TOKENIZER_BANDS)
    return np.ascontiguousarray(normalised(mel, float(mel.max())).numpy())


@cache
def _kaldi_filters() -> NDArray[np.float64]:
    filters: NDArray[np.float64] = mel_filter_bank(
        257, MELS, 20, HEARD_HZ / 2, HEARD_HZ, mel_scale="kaldi", triangularize_in_mel_space=True
    )
    return filters


def speaker_fbank(pcm: Array) -> Array:
    """Return Kaldi's log filter bank [frames, 80] of sound at 16 kHz, less its mean, for the speaker encoder.

    Frames are 25 ms long, every 10 ms, none beyond the ends.
    """
    bank = spectrogram(
        pcm,
        window_function(400, "povey", periodic=False),
        frame_length=400,
        hop_length=160,
        fft_length=512,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=_kaldi_filters(),
        log_mel="log",
        mel_floor=float(np.finfo(np.float32).eps),
        remove_dc_offset=True,
    ).T
    return np.ascontiguousarray(bank - bank.mean(axis=0, keepdims=True), np.float32)


@cache
def _prompt_filters() -> Tensor:
    filters = mel_filter_bank(_FFT // 2 + 1, MELS, 0, _TOP_HZ, RATE_HZ, norm="slaney", mel_scale="slaney")
    return torch.from_numpy(filters.T).float()


def prompt_mel(pcm: Tensor) -> Tensor:
    """Return log-mel [samples // 480, 80] of sound at 24 kHz, at least 721 samples, for the flow."""
    margin = (_FFT - HOP) // 2
    padded = F.pad(pcm[None], (margin, margin), mode="reflect")[0]
    window = torch.hann_window(_FFT)
    spectrum = torch.stft(padded, _FFT, HOP, window=window, center=False, return_complex=True)
    magnitude = (spectrum.real.square() + spectrum.imag.square() + 1e-9).sqrt()
    return (_prompt_filters() @ magnitude).clamp(min=_QUIETEST).log().T


def resampled(pcm: Tensor, from_hz: int, to_hz: int) -> Tensor:
    """Return sound at another rate, [ceil(samples * to_hz / from_hz)]; see `resampling_filters`."""
    if from_hz == to_hz:
        return pcm
    filters, old, reach = resampling_filters(from_hz, to_hz)
    padded = F.pad(pcm[None, None], (reach, reach + old))
    resampled = F.conv1d(padded, filters[:, None], stride=old)[0].T.flatten()
    return resampled[: math.ceil(len(filters) * len(pcm) / old)]


def resampling_filters(from_hz: int, to_hz: int) -> tuple[Tensor, int, int]:
    """Return filters [phases, 2 * reach + old] of a sinc under a Hann window, `old` and `reach`.

    Each phase has its own filter, and each `old` samples become one sample of each phase. As in torchaudio,
    the band ends at 0.99 of the lower Nyquist rate, and the sinc after six zero crossings.
    """
    divisor = math.gcd(from_hz, to_hz)
    old, new = from_hz // divisor, to_hz // divisor
    band = min(old, new) * _ROLLOFF
    reach = math.ceil(_ZERO_CROSSINGS * old / band)
    taps = torch.arange(-reach, reach + old, dtype=torch.float64) / old
    phases = torch.arange(new, dtype=torch.float64)[:, None] / new
    crossings = (band * (taps - phases)).clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS)
    window = torch.cos(crossings * math.pi / _ZERO_CROSSINGS / 2).square()
    return (torch.sinc(crossings) * window * band / old).float(), old, reach
