"""Whether somebody speaks, by loudness."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon.audio.wav import read_wav
from clients.recordings import make
from tests.ws_adapter.support.hearing import Hearing
from ws_adapter.protocol.core.speech import RATE_HZ, SpeechEdges, Started

RECORDINGS = Path(make.__file__).parent


def noise(seconds: float, level: float, seed: int = 1) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, level, round(RATE_HZ * seconds)).astype(np.float32)


def heard_after(hearing: Hearing, samples: NDArray[np.float32], piece: int = RATE_HZ // 10) -> float | None:
    """Seconds until it is known that somebody speaks."""
    edges = SpeechEdges(speech_ms=250)
    for at in range(0, samples.size, piece):
        for edge in edges.hear(hearing.scores(samples[at : at + piece])):
            if isinstance(edge, Started):
                return edge.known_at / RATE_HZ
    return None


@pytest.mark.parametrize("name", ["stop", "how_are_you", "arithmetic", "name"])
def test_speech_is_heard_soon(name: str) -> None:
    speech = read_wav(RECORDINGS / f"{name}.wav").astype(np.float32)
    begins = int(np.argmax(np.abs(speech) > 0.05)) / RATE_HZ
    hearing = Hearing()
    heard_after(hearing, noise(2.0, 0.002))
    heard = heard_after(hearing, speech)
    assert heard is not None
    assert heard - begins < 0.6


def test_silence_steady_noise_and_a_click_are_no_speech() -> None:
    hearing = Hearing()
    assert heard_after(hearing, np.zeros(RATE_HZ * 3, np.float32)) is None
    assert heard_after(hearing, noise(5.0, 0.015)) is None
    click = np.zeros(RATE_HZ * 3, np.float32)
    click[RATE_HZ : RATE_HZ + RATE_HZ // 20] = 0.8
    assert heard_after(Hearing(), click) is None


@pytest.mark.parametrize("piece", [7, 160, 799, 48_000])
def test_it_does_not_matter_how_the_sound_comes(piece: int) -> None:
    speech = read_wav(RECORDINGS / "stop.wav").astype(np.float32)
    assert heard_after(Hearing(), speech, piece) == heard_after(Hearing(), speech)
