"""The clip that ships with the adapter: the model's own voice, as the model speaks today."""

import numpy as np
from numpy.typing import NDArray
from scipy.signal import resample_poly, stft

from antiphon.audio.wav import read_wav
from antiphon_training.corpus.listener import Listener
from antiphon_training.domains.mini import ABILITIES_REPLY
from antiphon_training.stages.clip import RATE_HZ, speak
from tests.e2e.conftest import FOLDER
from ws_adapter.pages.default_voice import SHIPPED


def timbre(pcm: NDArray[np.float32]) -> NDArray[np.float32]:
    """The mean log spectrum of what is loud enough to be speech."""
    magnitude = np.abs(stft(pcm, RATE_HZ, nperseg=512)[2])
    energy = magnitude.sum(0)
    return np.asarray(np.log(magnitude[:, energy > energy.max() / 20] + 1e-4).mean(1))


def alike(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    return float(np.corrcoef(timbre(one), timbre(other))[0, 1])


def test_clip_is_the_models_own_voice() -> None:
    clip = read_wav(SHIPPED, RATE_HZ)
    text, spoken = speak()
    assert text == ABILITIES_REPLY
    assert Listener().hear(resample_poly(clip, 3, 2).astype(np.float32)) == ABILITIES_REPLY
    assert alike(clip, spoken) > 0.99
    others = [
        alike(clip, read_wav(FOLDER / f"{name}.wav", RATE_HZ)) for name in ("greeting", "joke", "thanks")
    ]
    assert max(others) < 0.95


def test_clip_is_small_enough_to_ship_and_to_be_a_reference() -> None:
    assert SHIPPED.stat().st_size < 200_000
    assert 2 < len(read_wav(SHIPPED, RATE_HZ)) / RATE_HZ < 4
