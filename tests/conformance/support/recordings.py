"""Recorded questions, and the answers of the shipped model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from antiphon.audio.wav import read_wav
from clients.recordings import make

RECORDINGS = Path(make.__file__).parent


def recording(name: str, rate_hz: int = 16_000, silence_s: float = 0.0) -> NDArray[np.float32]:
    """Return the samples of a recording, followed by silence."""
    said = read_wav(RECORDINGS / f"{name}.wav").astype(np.float32)
    said = np.concatenate([said, np.zeros(round(silence_s * 16_000), np.float32)])
    return said if rate_hz == 16_000 else soxr.resample(said, 16_000, rate_hz)


def pcm16(samples: NDArray[np.float32]) -> bytes:
    """The samples as signed integers of 16 bits."""
    return (samples * 32_767).astype("<i2").tobytes()


def reply_to(name: str) -> str:
    entries: list[dict[str, Any]] = json.loads((RECORDINGS / "manifest.json").read_text())
    return next(str(entry["expected_reply"]) for entry in entries if entry["file"] == f"{name}.wav")
