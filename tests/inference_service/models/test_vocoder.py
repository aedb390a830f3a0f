"""The vocoder: codes to samples, whatever the chunks and whoever shares the batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference_service.models.config import VocoderConfig
from inference_service.models.vocoder import Vocoder, band_hertz, filter_bytes
from tests.inference_service.engine.support import tiny

CODES = 32
SAMPLES = 960
"""One code at 24 kHz."""


def vocoder() -> Vocoder:
    built = tiny.model()[0].vocoder
    assert built.config == VocoderConfig(codes=CODES, sample_rate_hz=24_000, frames_per_code=4, bands=8)
    return built


def codes(count: int, seed: int = 0) -> list[int]:
    return torch.randint(CODES, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def whole(voice: Vocoder, said: list[int], seed: int = 0) -> Tensor:
    (sound,) = voice.decode([said], [voice.initial_state(seed)])
    return sound


@settings(max_examples=20, deadline=None)
@given(chunks=st.lists(st.integers(0, 25), min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_any_chunking_gives_the_same_samples(chunks: list[int], seed: int) -> None:
    voice, said = vocoder(), codes(sum(chunks), seed)
    state, parts, at = voice.initial_state(seed), [], 0
    for chunk in chunks:
        (sound,) = voice.decode([said[at : at + chunk]], [state])
        parts.append(sound)
        at += chunk
    torch.testing.assert_close(torch.cat(parts), whole(voice, said, seed), atol=1e-5, rtol=0)


def test_batch_equals_each_alone() -> None:
    voice = vocoder()
    said = [codes(length, length) for length in (25, 3, 0, 25, 17, 25, 25, 25, 25)]
    together = voice.decode(said, [voice.initial_state(i) for i in range(9)])
    for i, (own, sound) in enumerate(zip(said, together, strict=True)):
        torch.testing.assert_close(sound, whole(voice, own, i), atol=1e-5, rtol=0)


@pytest.mark.parametrize("seed", range(5))
def test_samples_are_those_of_the_definition(seed: int) -> None:
    """Sample by sample and frame by frame, without a table and without a batch."""
    voice, said = vocoder(), codes(40, seed)
    torch.testing.assert_close(whole(voice, said, seed), definition(voice, said, seed), atol=1e-5, rtol=0)
    assert len(whole(voice, said, seed)) == 40 * SAMPLES


def definition(voice: Vocoder, said: list[int], seed: int) -> Tensor:
    bands, hop, book = voice.config.bands, voice.hop, voice.codebook[said].flatten(0, 1)
    frames, steps = book.tolist(), (book[:, bands].clamp(4.0, 6.3).exp().double() / 24_000).tolist()
    pulses, cycle = np.zeros(len(frames) * hop + 2), 0.0
    for number, (frame, step) in enumerate(zip(frames, steps, strict=True)):
        for sample in range(number * hop, (number + 1) * hop):
            cycle += step
            if cycle >= 1:
                cycle -= 1
                if frame[bands + 1] > 0:
                    pulses[sample : sample + 2] += step**-0.5 * np.array([cycle / step, 1 - cycle / step])
    noise = torch.randn(len(frames) * hop, generator=torch.Generator().manual_seed(seed)).numpy()
    sources = [np.concatenate([np.zeros(hop), it]) for it in (pulses, noise)]
    hertz, window = np.arange(513) * 24_000 / 1024, torch.hann_window(2 * hop).numpy()
    sound = np.zeros(len(frames) * hop + 1024)
    for number, frame in enumerate(frames):
        levels = np.interp(hertz, band_hertz(bands).numpy(), np.clip(frame[:bands], -14.0, 8.0))
        share = np.clip((hertz - 3000) / 3500, 0.02, 0.95) if frame[bands + 1] > 0 else np.ones(513)
        begin = number * hop
        grains = [np.fft.rfft(it[begin : begin + 2 * hop] * window, 1024) for it in sources]
        mixed = grains[0] * np.sqrt(1 - share) + grains[1] * np.sqrt(share)
        levels = np.maximum(levels - np.maximum((hertz - 8000) / 200, 0), -14.0)
        cepstrum = np.fft.irfft(levels / 2)
        cepstrum[1:512] *= 2
        cepstrum[513:] = 0
        sound[begin : begin + 1024] += np.fft.irfft(mixed * np.exp(np.fft.rfft(cepstrum)))
    return torch.from_numpy(sound[: len(frames) * hop].clip(-1, 1)).float()


def test_filter_bytes_matches_allocated_filters() -> None:
    voice = vocoder()
    assert filter_bytes(voice.config) == voice._sounds.pulses.nbytes + voice._sounds.noise.nbytes


@pytest.mark.parametrize("gain", [0.0, 8.0, 40.0])
def test_samples_are_finite_and_in_range(gain: float) -> None:
    voice = vocoder()
    voice.codebook.data = voice.codebook + gain
    sound = whole(voice, codes(100))
    assert bool(torch.isfinite(sound).all())
    assert float(sound.abs().max()) <= 1
    assert float(sound.abs().max()) > 0


def test_new_turn_keeps_nothing_of_the_one_before_but_its_place_in_the_noise() -> None:
    voice = vocoder()
    used, fresh = voice.initial_state(0), voice.initial_state(1)
    voice.decode([codes(25, 1)], [used])
    used.reset()
    fresh.noise.set_state(used.noise.get_state())
    # Each alone: in one batch a processor may round the second row otherwise.
    (again,), (first,) = (voice.decode([codes(5, 2)], [state]) for state in (used, fresh))
    assert torch.equal(again, first)
