"""The vocoder: codes to samples, whatever the chunks and whoever shares the batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference_service.models.config import VocoderConfig
from inference_service.models.vocoder import Vocoder
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
    with torch.inference_mode():
        voice, said = vocoder(), codes(sum(chunks), seed)
        state, parts, at = voice.initial_state(seed), [], 0
        for chunk in chunks:
            (sound,) = voice.decode([said[at : at + chunk]], [state])
            parts.append(sound)
            at += chunk

        torch.testing.assert_close(torch.cat(parts), whole(voice, said, seed), atol=1e-5, rtol=0)


def test_batch_equals_each_alone() -> None:
    voice = vocoder()
    said = [codes(length, length) for length in (25, 3, 0, 25, 17, 25)]

    together = voice.decode(said, [voice.initial_state(i) for i in range(6)])

    for i, (own, sound) in enumerate(zip(said, together, strict=True)):
        torch.testing.assert_close(sound, whole(voice, own, i), atol=1e-5, rtol=0)


def test_twenty_five_codes_are_one_second() -> None:
    assert whole(vocoder(), codes(25)).shape == (24_000,)


@pytest.mark.parametrize("gain", [0.0, 8.0, 40.0])
def test_samples_are_finite_and_in_range(gain: float) -> None:
    voice = vocoder()
    voice.codebook.data = voice.codebook + gain

    sound = whole(voice, codes(100))

    assert bool(torch.isfinite(sound).all())
    assert float(sound.abs().max()) <= 1
    assert float(sound.abs().max()) > 0


def test_sound_depends_on_the_code() -> None:
    voice = vocoder()

    assert not torch.allclose(whole(voice, [1] * 5), whole(voice, [2] * 5), atol=1e-3)


def test_streams_hiss_differently() -> None:
    voice = vocoder()

    assert not torch.allclose(whole(voice, codes(5), seed=1), whole(voice, codes(5), seed=2), atol=1e-3)


def test_new_turn_keeps_nothing_of_the_one_before_but_its_place_in_the_noise() -> None:
    voice = vocoder()
    used, fresh = voice.initial_state(0), voice.initial_state(1)
    voice.decode([codes(25, 1)], [used])
    used.reset()
    fresh.noise.set_state(used.noise.get_state())

    # Each alone: in one batch a processor may round the second row otherwise.
    (again,), (first,) = (voice.decode([codes(5, 2)], [state]) for state in (used, fresh))

    assert torch.equal(again, first)
