"""A resampler that goes on with the state of another one continues its sound."""

import numpy as np
import pytest
from numpy.typing import NDArray

from ws_adapter.protocol.live.resampler import PAST_S, Resampler, SavedResampler
from ws_adapter.protocol.wire.codec import NO_AUDIO

RATES = [(24_000, 16_000), (8_000, 16_000), (24_000, 8_000), (16_000, 24_000)]
BLOCK_S = 0.1


def noise(rate_hz: int, seconds: float) -> NDArray[np.float32]:
    samples = np.random.default_rng(1).standard_normal(round(rate_hz * seconds))
    return samples.astype(np.float32) * np.float32(0.1)


@pytest.mark.parametrize(("from_hz", "to_hz"), RATES)
@pytest.mark.parametrize("blocks", [0, 1, 2, 7, 13])
def test_sound_behind_the_change_is_the_same(from_hz: int, to_hz: int, blocks: int) -> None:
    sound = noise(from_hz, 2.0)
    pieces = np.split(sound, range(round(BLOCK_S * from_hz), sound.size, round(BLOCK_S * from_hz)))
    whole, first, second = (Resampler(from_hz, to_hz) for _ in range(3))
    expected = np.concatenate([*map(whole.more, pieces), whole.more(NO_AUDIO.samples, last=True)])
    told = [first.more(piece) for piece in pieces[:blocks]]
    second.restore(first.save())
    told += [second.more(piece) for piece in pieces[blocks:]]
    heard = np.concatenate([*told, second.more(NO_AUDIO.samples, last=True)])
    assert heard.size == expected.size
    assert np.abs(heard - expected).max() < 1e-5


def test_change_after_change_loses_nothing() -> None:
    sound = noise(24_000, 3.0)
    pieces = np.split(sound, range(1000, sound.size, 1000))
    whole, changing = Resampler(24_000, 16_000), Resampler(24_000, 16_000)
    expected = np.concatenate([whole.more(piece) for piece in pieces])
    told = []
    for piece in pieces:
        told.append(changing.more(piece))
        state = changing.save()
        changing = Resampler(24_000, 16_000)
        changing.restore(state)

    heard = np.concatenate(told)
    size = min(heard.size, expected.size)
    assert abs(heard.size - expected.size) < 0.03 * 16_000
    assert np.abs(heard[:size] - expected[:size]).max() < 1e-5


def test_state_is_bounded() -> None:
    resampler = Resampler(24_000, 16_000)
    for _ in range(50):
        resampler.more(noise(24_000, 0.37))
    assert len(resampler.save().past) <= 4 * (PAST_S * 24_000 + 3)


def test_torn_state_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        Resampler(24_000, 16_000).restore(SavedResampler(b"abc", 0))
