"""The streaming log-mel is the recorded one, and remembers no more than it needs."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inference_service.models.minicpmo.mel import (
    HOP,
    LONGEST,
    RATE_HZ,
    SHORTEST,
    StreamingMel,
    clip_mels,
    log10_mel,
    normalised,
)
from tests.inference_service.engine.support import golden

BANDS = 80
LAG = 80
FLOAT_BYTES = 4
LIMIT = 5e-5
"""The golden README's, for what is compared with recordings. Where they were made the mel is bit-equal,
elsewhere Fourier transform and filters round otherwise, which a quiet band of a loud frame shows.
"""


def wave(name: str = "wave_i16") -> NDArray[np.float32]:
    return golden.tensors("audio")[name].float().numpy() / np.float32(32768)


def second(number: int) -> NDArray[np.float32]:
    """Of the recorded stream, which repeats twelve seconds."""
    begin = number % 12 * RATE_HZ
    return wave()[begin : begin + RATE_HZ]


UNITS = golden.recording("audio")["stream"]


def test_recorded_stream_is_reproduced_with_its_buffer_and_normalisation() -> None:
    """Its length after every unit, the cut of the oldest ten seconds at the thirtieth unit included.

    A fixed floor for four seconds, from the fifth on what the buffer's loudest frame says.
    """
    mel, seen = StreamingMel(), 0
    for number, unit in enumerate(UNITS):
        assert unit["chunk"] == number
        frames, recorded = mel.feed(second(number)), golden.tensors("audio").get(f"stream.mel.{number:02}")
        if recorded is not None:
            seen += 1
            np.testing.assert_allclose(frames, recorded, rtol=0, atol=LIMIT, err_msg=f"unit {number}")
        assert frames.shape == (BANDS, unit["mel_frames"])
        buffer = unit["buffer_samples"]
        assert mel.nbytes == FLOAT_BYTES * (buffer + LAG + buffer // HOP), number
        assert mel.is_dynamic == (unit["log_norm"] == "dynamic max-8"), number
    assert seen == 6
    assert {unit["log_norm"] for unit in UNITS} == {"dynamic max-8", "fixed floor -10"}


def whole_buffer(pcm: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """The units of a stream as published: for each of them all that is buffered, anew."""
    heard = np.concatenate([np.zeros(560, np.float32), pcm])
    begun = 0
    for unit in range(len(pcm) // RATE_HZ):
        end = 560 + RATE_HZ * (unit + 1) - LAG
        buffer = heard[begun * HOP : end]
        mel = log10_mel(buffer, BANDS)
        mel = normalised(mel, float(mel.max()) if len(buffer) >= 5 * RATE_HZ else None)
        first = 100 * unit - begun
        yield mel[:, max(0, first - 2) : first + 102].numpy()
        if len(buffer) >= LONGEST:
            begun += 1000


def random_loudness(seed: int, seconds: int) -> NDArray[np.float32]:
    """Noise that is loud and silent by turns, down to nothing; each stretch lasts 20 ms to 4 s."""
    rng = np.random.default_rng(seed)
    parts: list[NDArray[np.float32]] = []
    while sum(map(len, parts)) < seconds * RATE_HZ:
        level = rng.choice([0.0, 1e-4, 1e-2, 1.0])
        parts.append(np.float32(level) * rng.uniform(-1, 1, rng.integers(320, 64_000)).astype(np.float32))
    return np.concatenate(parts)[: seconds * RATE_HZ]


def click() -> NDArray[np.float32]:
    """A click where the buffer is cut, whose first samples are mirrored: it is in more frames than it was."""
    pcm = np.zeros(32 * RATE_HZ, np.float32)
    pcm[10 * RATE_HZ - 560 + 30] = 1.0
    pcm[-RATE_HZ:] = 1e-3 * np.random.default_rng(0).uniform(-1, 1, RATE_HZ)
    return pcm


@pytest.mark.parametrize("pcm", [*(random_loudness(seed, 65) for seed in range(3)), click()])
def test_new_frames_alone_give_what_the_whole_buffer_gives(pcm: NDArray[np.float32]) -> None:
    mel = StreamingMel()
    for unit, expected in enumerate(whole_buffer(pcm)):
        frames = mel.feed(pcm[unit * RATE_HZ : (unit + 1) * RATE_HZ])
        np.testing.assert_allclose(frames, expected, rtol=0, atol=1e-6, err_msg=f"unit {unit}")


@pytest.mark.long
def test_an_hour_takes_no_more_memory_than_a_minute() -> None:
    mel, noise = StreamingMel(), random_loudness(9, 10)
    seconds = noise.reshape(10, RATE_HZ)
    sizes = []
    for unit in range(3600):
        assert mel.feed(seconds[unit % 10]).shape[1] == (104 if unit else 102)
        sizes.append(mel.nbytes)
    assert max(sizes) == max(sizes[:60]) < 2 * FLOAT_BYTES * LONGEST
    assert sizes[-10:] == sizes[50:60]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_sound_that_is_none_spoils_its_own_unit_only(bad: float) -> None:
    pcm = random_loudness(5, 12).reshape(12, RATE_HZ)
    spoilt, silent = pcm.copy(), pcm.copy()
    spoilt[6, 8000:], silent[6, 8000:] = bad, 0.0
    mel, other = StreamingMel(), StreamingMel()
    frames, expected = (
        [stream.feed(unit) for unit in units] for stream, units in ((mel, spoilt), (other, silent))
    )
    assert not np.isfinite(frames[6]).all()
    assert all(np.array_equal(frames[i], expected[i]) for i in range(12) if i != 6)


def test_given_sound_is_left_alone() -> None:
    pcm = second(0).copy()
    mel = StreamingMel()
    mel.feed(pcm)
    pcm[:] = 1.0
    other = StreamingMel()
    other.feed(second(0))
    assert np.array_equal(mel.feed(second(1)), other.feed(second(1)))


def test_sound_of_another_length_is_refused() -> None:
    for shape in ((15_999,), (16_001,), (0,), (1, 16_000)):
        with pytest.raises(ValueError, match="A unit has 16000 samples"):
            StreamingMel().feed(np.zeros(shape, np.float32))
    for shape in ((0,), (2, 100)):
        with pytest.raises(ValueError, match="A clip has one dimension"):
            clip_mels(np.zeros(shape, np.float32))


def test_recorded_reference_is_reproduced() -> None:
    (mel,) = clip_mels(wave("ref_wave_i16"))
    assert mel.shape[1] == golden.recording("audio")["ref_mel_len"]
    np.testing.assert_allclose(mel, golden.tensors("audio")["ref.mel"], rtol=0, atol=LIMIT)


def test_clip_normalisation_is_independent_of_streams() -> None:
    """The reference keeps the mode of the last stream, here a short one, in an extractor that all share."""
    pcm = random_loudness(4, 20)
    (before,) = clip_mels(pcm)
    StreamingMel().feed(second(0))
    (after,) = clip_mels(pcm)
    assert np.array_equal(before, after)
    assert np.isclose(before.min(), before.max() - 2.0), "at most 80 dB below its loudest, and no fixed floor"


def test_long_clips_come_in_pieces_of_thirty_seconds() -> None:
    pcm = random_loudness(1, 61)
    pieces = clip_mels(pcm)
    assert [piece.shape for piece in pieces] == [(BANDS, 3000), (BANDS, 3000), (BANDS, 100)]
    assert np.array_equal(pieces[1], clip_mels(pcm[LONGEST : 2 * LONGEST])[0])


def test_short_clips_are_filled_up_with_silence() -> None:
    (mel,) = clip_mels(np.ones(10, np.float32))
    assert mel.shape == (BANDS, SHORTEST // HOP)
    (longer,) = clip_mels(np.concatenate([np.ones(10, np.float32), np.zeros(SHORTEST - 10, np.float32)]))
    assert np.array_equal(mel, longer)


def test_silence_is_finite() -> None:
    mel = StreamingMel()
    for _ in range(6):
        assert np.isfinite(mel.feed(np.zeros(RATE_HZ, np.float32))).all()
    assert torch.isfinite(torch.from_numpy(clip_mels(np.zeros(100, np.float32))[0])).all()
