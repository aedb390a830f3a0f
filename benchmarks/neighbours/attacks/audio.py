"""What attackers say when they only have to say something."""

import base64
from typing import Final

import numpy as np

_RATE_HZ: Final = 16_000


def noise(seconds: float) -> str:
    """Base64 of float32 mono at 16 kHz."""
    samples = np.random.default_rng(1).uniform(-0.3, 0.3, round(seconds * _RATE_HZ)).astype("<f4")
    return base64.b64encode(samples.tobytes()).decode()


SECOND: Final = noise(1.0)
