"""Log-mel features of a stream."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from inference_service.kernels.selection import usable
from inference_service.media.mel import (
    BANDS,
    CONTEXT,
    FFT,
    HOP,
    SAMPLE_RATE,
    MelStream,
    log_mel,
    mel_filters,
    mel_power,
)

SILENCE = np.zeros(CONTEXT, np.float32)


def noise(samples: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(samples).astype(np.float32) * 0.1


@settings(deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8))
def test_any_chunking_equals_the_whole(chunks: list[int]) -> None:
    # The context is longer than one hop, so a chunk of one frame leaves part of the last one's in it.
    pcm = noise(sum(chunks) * HOP)
    heard, parts = SILENCE, []
    for part in np.split(pcm, np.cumsum(chunks)[:-1] * HOP):
        parts.append(mel_power(part, heard))
        heard = np.concatenate([heard, part])[-CONTEXT:]
    np.testing.assert_allclose(np.concatenate(parts), mel_power(pcm, SILENCE), rtol=1e-5, atol=1e-7)


def test_one_second_gives_a_hundred_frames() -> None:
    assert mel_power(noise(SAMPLE_RATE), SILENCE).shape == (100, BANDS)


def test_no_frame_looks_ahead() -> None:
    one, other = noise(SAMPLE_RATE, 1), noise(SAMPLE_RATE, 1)
    other[50 * HOP :] = noise(SAMPLE_RATE - 50 * HOP, 2)
    before, after = mel_power(one, SILENCE), mel_power(other, SILENCE)
    np.testing.assert_array_equal(before[:50], after[:50])
    assert not np.allclose(before[50], after[50])


def test_tone_lands_in_its_band() -> None:
    tone = np.sin(2 * np.pi * 1000 * np.arange(SAMPLE_RATE) / SAMPLE_RATE).astype(np.float32)
    loudest = mel_power(tone, SILENCE)[50].argmax()
    peak = mel_filters(SAMPLE_RATE, FFT, BANDS, 20, 7800)[loudest].argmax() * SAMPLE_RATE / FFT
    assert peak == pytest.approx(1000, abs=60)


def test_silence_and_loud_speech_have_the_stated_values() -> None:
    assert log_mel(mel_power(np.zeros(HOP, np.float32), SILENCE)).max() == pytest.approx(-3.1, abs=0.1)
    assert 2 < log_mel(mel_power(noise(SAMPLE_RATE) * 5, SILENCE)).max() < 4


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_sound_that_is_none_spoils_its_own_chunk_only(bad: float) -> None:
    stream, spoilt = MelStream(), noise(SAMPLE_RATE)
    spoilt[-7] = bad
    assert not np.isfinite(stream.feed(spoilt)).all()
    assert np.isfinite(stream.feed(noise(SAMPLE_RATE))).all()


needs_kernel = pytest.mark.skipif(not usable("mel"), reason="there was no compiler at installation")


def test_kernel_is_there_where_the_others_are() -> None:
    """Else all tests of it would be skipped, and nobody would know."""
    assert usable("mel") == usable("native")


@needs_kernel
@settings(deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.sampled_from([0.0, 1e-3, 1.0, 50.0]))
def test_kernel_hears_what_numpy_does(chunks: list[int], loudness: float) -> None:
    """In chunks of any length, which leave the same behind for the next one."""
    stream, heard = MelStream(), SILENCE
    pcm = noise(sum(chunks) * HOP) * np.float32(loudness)
    for chunk in np.split(pcm, np.cumsum(chunks)[:-1] * HOP):
        np.testing.assert_allclose(stream.feed(chunk), log_mel(mel_power(chunk, heard)), atol=3e-4)
        heard = np.concatenate([heard, np.clip(chunk, -1, 1)])[-CONTEXT:]


@needs_kernel
def test_kernel_takes_no_arrays_of_other_sizes() -> None:
    with pytest.raises(ValueError, match="pcm must have 160 numbers, not 161"):
        MelStream().feed(noise(HOP + 1))
