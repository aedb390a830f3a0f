"""Whether the user speaks, by loudness."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon.audio.wav import read_wav
from tests.recordings import make
from ws_adapter.protocol.live.gate import Gate

RATE = 16_000
RECORDINGS = Path(make.__file__).parent


def noise(seconds: float, level: float, seed: int = 1) -> NDArray[np.float32]:
    samples = np.random.default_rng(seed).normal(0, level, round(RATE * seconds))
    return samples.astype(np.float32)


def heard_after(gate: Gate, samples: NDArray[np.float32], piece: int = RATE // 10) -> float | None:
    """Seconds until speech is heard."""
    for at in range(0, samples.size, piece):
        if gate.hears_speech(samples[at : at + piece]):
            return (at + piece) / RATE
    return None


@pytest.mark.parametrize("name", ["stop", "how_are_you", "arithmetic", "name"])
def test_speech_is_heard_soon(name: str) -> None:
    speech = read_wav(RECORDINGS / f"{name}.wav").astype(np.float32)
    begins = int(np.argmax(np.abs(speech) > 0.05)) / RATE
    gate = Gate()
    heard_after(gate, noise(2.0, 0.002))

    heard = heard_after(gate, speech)

    assert heard is not None
    assert heard - begins < 0.6


def test_silence_and_steady_noise_are_no_speech() -> None:
    gate = Gate()

    assert heard_after(gate, np.zeros(RATE * 3, np.float32)) is None
    assert heard_after(gate, noise(5.0, 0.015)) is None


def test_a_click_is_no_speech() -> None:
    gate = Gate()
    samples = np.zeros(RATE * 3, np.float32)
    samples[RATE : RATE + RATE // 20] = 0.8

    assert heard_after(gate, samples) is None


@pytest.mark.parametrize("piece", [7, 160, 799, 48_000])
def test_it_does_not_matter_how_the_sound_comes(piece: int) -> None:
    speech = read_wav(RECORDINGS / "stop.wav").astype(np.float32)

    assert heard_after(Gate(), speech, piece) is not None
