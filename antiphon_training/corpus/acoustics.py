"""Acoustic analysis of the model's own voice: envelope, pitch and voicing at 100 frames per second."""

import numpy as np
import torch
from numpy.typing import NDArray

from inference_service.models.vocoder import FRAME_SECONDS, band_hertz

Array = NDArray[np.float64]
_RATE = 16_000
_HOP = round(_RATE * FRAME_SECONDS)
_FFT = 1024
_SPAN = 640
_PITCH_HZ = (90.0, 400.0)
_DEFAULT_HZ = 180.0
_SILENCE = 1e-6


def pitch_track(pcm: NDArray[np.float32]) -> tuple[Array, NDArray[np.bool_]]:
    """Return pitch in Hz and voicing of each 10 ms frame of 16 kHz speech.

    Pitch is the smoothest path through the peaks of the normalised autocorrelation.
    """
    frames = len(pcm) // _HOP
    padded = np.pad(pcm.astype(np.float64), (_SPAN // 2, _SPAN + _HOP))
    windows = np.lib.stride_tricks.sliding_window_view(padded, _SPAN)[::_HOP][:frames]
    windows = windows - windows.mean(1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(windows * np.hanning(_SPAN), 2048)) ** 2
    correlation = np.fft.irfft(spectrum)[:, : _RATE // 60]
    taper = np.fft.irfft(np.abs(np.fft.rfft(np.hanning(_SPAN), 2048)) ** 2)[: _RATE // 60]
    correlation = correlation / (correlation[:, :1] + 1e-9) / (taper / taper[0])
    lags = np.arange(int(_RATE / _PITCH_HZ[1]), int(_RATE / _PITCH_HZ[0]))
    score = correlation[:, lags] - 0.0004 * lags
    best = np.zeros((frames, len(lags)))
    back = np.zeros((frames, len(lags)), np.int64)
    jump = 6.0 * np.abs(np.log(lags[:, None] / lags[None]))
    best[0] = score[0]
    for t in range(1, frames):
        reach = best[t - 1][None] - jump
        back[t] = reach.argmax(1)
        best[t] = score[t] + reach.max(1)
    path = np.zeros(frames, np.int64)
    path[-1] = best[-1].argmax()
    for t in range(frames - 1, 0, -1):
        path[t - 1] = back[t, path[t]]
    strength = correlation[np.arange(frames), lags[path]]
    energy = (windows**2).mean(1)
    voiced = (strength > 0.5) & (energy > 1e-4 * energy.max())
    return _RATE / lags[path], voiced


def envelope(pcm: NDArray[np.float32], hertz: Array, voiced: NDArray[np.bool_], bands: int) -> Array:
    """Return log power per band [frames, bands], without the harmonics of the pitch.

    Windows are three pitch periods long. The power of a band is averaged over two thirds of the pitch in Hz.
    """
    padded = np.pad(pcm.astype(np.float64), (_FFT, _FFT))
    centres = band_hertz(bands).numpy()
    bins = np.arange(_FFT // 2 + 1) * _RATE / _FFT
    rows = []
    for i, (f0, speaks) in enumerate(zip(hertz, voiced, strict=True)):
        f0 = f0 if speaks else _DEFAULT_HZ
        half = int(1.5 * _RATE / f0)
        middle = i * _HOP + _FFT
        window = np.hanning(2 * half + 1)
        window /= np.sqrt((window**2).sum())
        power = np.abs(np.fft.rfft(padded[middle - half : middle + half + 1] * window, _FFT)) ** 2
        area = np.concatenate([[0], np.cumsum(power)]) * _RATE / _FFT
        edges = np.arange(_FFT // 2 + 2) * _RATE / _FFT
        width = f0 * 2 / 3
        low, high = np.clip(centres - width / 2, 0, bins[-1]), np.clip(centres + width / 2, 0, bins[-1])
        mean = (np.interp(high, edges, area) - np.interp(low, edges, area)) / (high - low)
        rows.append(np.log(mean + _SILENCE))
    return np.array(rows)


def analyse(pcm: NDArray[np.float32], bands: int) -> NDArray[np.float32]:
    """Return acoustic frames [frames, bands + 2] of 16 kHz speech: log power, log pitch, voicing (+1, -1)."""
    hertz, voiced = pitch_track(pcm)
    power = envelope(pcm, hertz, voiced, bands)
    known = np.where(voiced)[0]
    pitch = np.interp(np.arange(len(hertz)), known, np.log(hertz[known])) if len(known) else np.log(hertz)
    return np.concatenate([power, pitch[:, None], np.where(voiced, 1.0, -1.0)[:, None]], 1).astype(np.float32)


def silence(frames: int, bands: int, pitch: float) -> NDArray[np.float32]:
    """Return acoustic frames [frames, bands + 2] of silence with the log pitch `pitch`."""
    row = np.full(bands + 2, np.log(_SILENCE), np.float32)
    row[bands], row[bands + 1] = pitch, -1.0
    return np.tile(row, (frames, 1))


def resample_frames(frames: NDArray[np.float32], length: int) -> NDArray[np.float32]:
    """Stretch or squeeze acoustic frames to `length` frames."""
    positions = torch.linspace(0, len(frames) - 1, length).numpy()
    low = positions.astype(np.int64)
    part = (positions - low)[:, None].astype(np.float32)
    high = np.minimum(low + 1, len(frames) - 1)
    mixed = frames[low] * (1 - part) + frames[high] * part
    mixed[:, -1] = np.where(part[:, 0] < 0.5, frames[low, -1], frames[high, -1])
    return np.asarray(mixed, dtype=np.float32)
