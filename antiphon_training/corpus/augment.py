"""Variation of speech and noise, applied to mel power at 100 frames per second.

Features are cheaper to vary than waveforms. A warped band axis simulates another vocal tract, smoothing along
time simulates reverberation, and a slope over bands simulates a microphone.
"""

import random

import numpy as np
from numpy.typing import NDArray

from inference_service.media.mel import BANDS

Power = NDArray[np.float32]
_NOISE_FRAMES = 40_000


def _resample(power: Power, positions: NDArray[np.floating], axis: int) -> Power:
    low = positions.astype(np.int64)
    high = np.minimum(low + 1, power.shape[axis] - 1)
    part = (positions - low).astype(np.float32)
    part = part[:, None] if axis == 0 else part[None, :]
    return np.asarray(power.take(low, axis) * (1 - part) + power.take(high, axis) * part)


def resample(power: Power, places: NDArray[np.floating]) -> Power:
    """Return mel power [len(places), 80] at `places`, which are positions from 0 (begin) to 1 (end)."""
    return _resample(power, places * (len(power) - 1), 0)


class Augmenter:
    """A source of random variations from one seed; every method returns a new array."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.noise_rng = np.random.default_rng(seed)
        self._grain = self.noise_rng.gamma(2.0, 0.5, (_NOISE_FRAMES, BANDS)).astype(np.float32)

    def speech(self, power: Power) -> Power:
        """Vary one utterance [frames, 80]: speaker, tempo, room, microphone and distance.

        The number of frames changes with the tempo.
        """
        rng = self.rng
        frames = max(8, int(len(power) / rng.uniform(0.82, 1.22)))
        power = _resample(power, np.linspace(0, len(power) - 1, frames), 0)
        warp = np.clip(np.arange(BANDS) * rng.uniform(0.86, 1.15), 0, BANDS - 1)
        power = _resample(power, warp, 1)
        power = power * self._slope(8, 0.35) ** rng.uniform(0, 1.5)
        if rng.random() < 0.4:
            power = self._reverberation(power)
        return np.asarray(power * np.float32(10 ** rng.uniform(-2.4, 0.5)), dtype=np.float32)

    def strange(self, power: Power) -> Power:
        """Distort an utterance [frames, 80] beyond recognition, by a random warp of bands and of time."""
        rng = self.rng
        bend = np.cumsum(np.exp(self.noise_rng.standard_normal(BANDS) * 0.6))
        power = _resample(power, bend / bend[-1] * (BANDS - 1) * rng.uniform(0.6, 1.0), 1)
        steps = np.exp(self.noise_rng.standard_normal(max(3, len(power) // 12)) * 0.7)
        pace = np.interp(np.arange(len(power)), np.linspace(0, len(power), len(steps)), steps)
        places = np.cumsum(pace)
        power = _resample(power, places / places[-1] * (len(power) - 1), 0)
        return np.asarray(power * self._slope(10, 0.8), dtype=np.float32)

    def _slope(self, knots: int, step: float) -> Power:
        walk = np.exp(np.cumsum(self.noise_rng.standard_normal(knots)) * step)
        return np.interp(np.arange(BANDS), np.linspace(0, BANDS - 1, knots), walk).astype(np.float32)

    def _reverberation(self, power: Power) -> Power:
        decay, wet = self.rng.uniform(0.5, 0.88), self.rng.uniform(0.1, 0.5)
        taps = max(2, int(np.log(0.01) / np.log(decay)))
        kernel = ((1 - decay) * decay ** np.arange(taps)).astype(np.float32)
        padded = np.concatenate([np.zeros((taps - 1, BANDS), np.float32), power])
        windows = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=0)
        return np.asarray(power * (1 - wet) + (windows @ kernel[::-1]) * wet)

    def _steady(self, frames: int) -> Power:
        """Return coloured noise [frames, 80] of mean 1, in two of five cases with a varying level."""
        start = self.rng.randrange(_NOISE_FRAMES - frames) if frames < _NOISE_FRAMES else 0
        noise = self._grain[start : start + frames] * self._slope(6, 0.7)
        if self.rng.random() < 0.4:
            knots = max(3, frames // 40)
            swell = np.exp(self.noise_rng.standard_normal(knots))
            noise = noise * np.interp(np.arange(frames), np.linspace(0, frames, knots), swell)[:, None]
        return np.asarray(noise / noise.mean(), dtype=np.float32)

    def _events(self, frames: int) -> Power:
        """Return knocks, beeps and tones [frames, 80]: short or narrow sounds that are not speech."""
        sound = np.zeros((frames, BANDS), np.float32)
        for _ in range(max(1, frames // 150)):
            at, band = self.rng.randrange(frames), self.rng.randrange(4, BANDS - 4)
            if self.rng.random() < 0.5:
                length = self.rng.randint(2, 12)
                fade = np.exp(-np.arange(length) / self.rng.uniform(1, 6)).astype(np.float32)
                shape = self._slope(5, 1.0)
                sound[at : at + length] += (fade[:, None] * shape)[: frames - at]
            else:
                length = self.rng.randint(10, 120)
                sound[at : at + length, band - 1 : band + 2] += self.rng.uniform(1, 10)
        return np.asarray(sound / max(1e-6, float(sound.mean())) * self.rng.uniform(0.1, 1), dtype=np.float32)

    def noise(self, frames: int, reference: float) -> Power:
        """Return background noise [frames, 80], 3 to 70 dB below speech of mean power `reference`."""
        rng = self.rng
        level = rng.choice(
            [rng.uniform(3, 15), rng.uniform(10, 35), rng.uniform(25, 50), rng.uniform(30, 70)]
        )
        noise = self._steady(frames)
        if rng.random() < 0.3:
            noise = noise + self._events(frames)
        return np.asarray(noise * np.float32(reference * 10 ** (-level / 10)) + 1e-7, dtype=np.float32)
