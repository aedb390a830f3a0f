"""The spectra that a voice prompt is computed from."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import WhisperFeatureExtractor

from inference_service.models.token2wav import features
from tests.inference_service.models.token2wav import recorded

Array = NDArray[np.float32]


def noise(samples: int, seed: int = 0) -> Array:
    """Loud and soft by turns, with an offset."""
    draw = np.random.default_rng(seed)
    loudness = 0.01 + 0.2 * np.abs(np.sin(np.arange(samples) / 3000))
    return (draw.standard_normal(samples) * loudness + 0.01).astype(np.float32)


def test_prompt_mel_and_its_filters_as_recorded() -> None:
    stored = recorded.tensors("prompt_mel")
    mel = features.prompt_mel(stored["wav"][0])
    assert mel.shape == (25, 80)
    assert float((mel.T - stored["log_mel"][0]).abs().max()) < 1e-5
    filters = torch.zeros(80, 961)
    rows, columns = stored["filter_index"].long().T
    filters[rows, columns] = stored["filter_value"]
    assert float((features._prompt_filters() - filters).abs().max()) < 1e-7


def kaldi_fbank(pcm: Array) -> NDArray[np.float64]:
    """Kaldi's filter bank by its formulas (feature-window.cc, mel-computations.cc), band by band."""
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
    mel = 1127 * np.log(1 + np.array([20.0, 8000.0]) / 700)
    step = (mel[1] - mel[0]) / 81
    bins = 1127 * np.log(1 + np.arange(256) * 16000 / 512 / 700)
    rows = []
    for begin in range(0, len(pcm) - 399, 160):
        frame = pcm[begin : begin + 400].astype(np.float64)
        frame = frame - frame.mean()
        emphasised = np.concatenate([frame[:1] * (1 - 0.97), frame[1:] - 0.97 * frame[:-1]])
        power = np.abs(np.fft.fft(emphasised * window, 512)[:256]) ** 2
        row = []
        for band in range(80):
            left, middle, right = mel[0] + step * np.arange(band, band + 3)
            rising, falling = (bins - left) / (middle - left), (right - bins) / (right - middle)
            weights = np.where((bins > left) & (bins < right), np.minimum(rising, falling), 0)
            row.append(np.log(max(power @ weights, np.finfo(np.float32).eps)))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("samples", [16_000, 16_159, 8_400])
def test_speaker_fbank_by_kaldis_formulas(samples: int) -> None:
    pcm = noise(samples)
    theirs = kaldi_fbank(pcm)
    ours = features.speaker_fbank(pcm)
    assert ours.dtype == np.float32
    assert ours.shape == (1 + (samples - 400) // 160, 80)
    assert np.abs(ours - (theirs - theirs.mean(axis=0))).max() < 1e-3


def test_speaker_fbank_of_digital_silence_is_finite() -> None:
    assert np.abs(features.speaker_fbank(np.zeros(16_000, np.float32))).max() < 1e-3


@pytest.mark.parametrize("samples", [16_000, 40_037])
def test_tokenizer_mel_is_whispers(samples: int) -> None:
    pcm = noise(samples)
    extractor = WhisperFeatureExtractor(feature_size=128)
    theirs = extractor(pcm, sampling_rate=16_000, padding=False, return_tensors="np").input_features[0]
    ours = features.tokenizer_mel(pcm)
    assert ours.shape == (128, samples // 160)
    assert np.abs(ours - theirs[:, : samples // 160]).max() < 1e-4


@pytest.mark.parametrize(
    ("from_hz", "to_hz"), [(16_000, 24_000), (24_000, 16_000), (44_100, 16_000), (22_050, 24_000)]
)
def test_tone_is_the_same_at_another_rate(from_hz: int, to_hz: int) -> None:
    def tone(rate_hz: int, samples: int) -> torch.Tensor:
        return torch.sin(2 * torch.pi * 1000 * torch.arange(samples, dtype=torch.float64) / rate_hz).float()

    changed = features.resampled(tone(from_hz, from_hz + 1), from_hz, to_hz)

    expected = tone(to_hz, len(changed))
    assert len(changed) == -(-(from_hz + 1) * to_hz // from_hz)
    assert float((changed - expected)[200:-200].abs().max()) < 2e-3


def test_resampling_removes_aliases_and_skips_equal_rates() -> None:
    time = torch.arange(48_000, dtype=torch.float64) / 48_000
    tone = torch.sin(2 * torch.pi * 12_000 * time).float()
    assert float(features.resampled(tone, 48_000, 16_000)[200:-200].abs().max()) < 0.02
    assert features.resampled(tone, 16_000, 16_000) is tone
