"""Audio input of attackers."""

import base64
from typing import Final

import numpy as np

_RATE_HZ: Final = 16_000


def noise(seconds: float, rate_hz: int = _RATE_HZ) -> str:
    """Return `seconds` of noise as base64 of float32 mono at `rate_hz`."""
    samples = np.random.default_rng(1).uniform(-0.3, 0.3, round(seconds * rate_hz)).astype("<f4")
    return base64.b64encode(samples.tobytes()).decode()


SECOND: Final = noise(1.0)
