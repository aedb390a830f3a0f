"""Sentences in the voice slt, which was built from one woman's recordings, and the grammar that ships."""

import wave
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from inference_service.checkpoints.location import find
from inference_service.recogniser.decoder import GRAMMAR

SPOKEN = Path(__file__).parents[2] / "data" / "recogniser"


def sentence(name: str, *, lead_s: float = 0.4, tail_s: float = 0.4) -> NDArray[np.float32]:
    """Return a recorded sentence between silences with a little noise, float32 at 16 kHz."""
    with wave.open(str(SPOKEN / f"{name}.wav")) as file:
        assert file.getframerate() == 16_000
        speech = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    padded = np.pad(speech, (round(lead_s * 16_000), round(tail_s * 16_000)))
    return padded + np.random.default_rng(0).standard_normal(len(padded)).astype(np.float32) * np.float32(
        3e-4
    )


@pytest.fixture(scope="session")
def grammar() -> Path:
    """Return the file of the grammar that ships."""
    return find("antiphon-mini") / GRAMMAR
