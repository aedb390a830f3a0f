"""The one function of librosa that the program beside it calls, for files as the tests have them.

librosa itself brings a compiler along (numba) and is no dependency here.
"""

import wave

import numpy as np
import soxr
from numpy.typing import NDArray


def load(path: str, *, sr: int, mono: bool) -> tuple[NDArray[np.float32], int]:
    """Samples of a WAV file with 16-bit samples at `sr` Hz, and that rate."""
    with wave.open(path) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, file.getnchannels())
        rate = file.getframerate()
    audio = pcm.mean(axis=1) if mono else pcm.T
    return soxr.resample((audio / 32768).astype(np.float32), rate, sr), sr
