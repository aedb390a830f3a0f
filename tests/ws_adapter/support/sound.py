"""Audio files for tests."""

import io
import wave

import numpy as np

from ws_adapter.protocol.wire.codec import Samples


def wav(samples: np.ndarray, rate: int = 16_000, width: int = 2, channels: int = 1) -> bytes:
    """A PCM WAV file; every channel holds `samples`."""
    scaled = (samples * (2 ** (8 * width - 1) - 1)).astype("<i8")
    frames = np.repeat(scaled, channels).astype("<i8").tobytes()
    data = b"".join(frames[i : i + width] for i in range(0, len(frames), 8))
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(rate)
        writer.writeframes(data)
    return file.getvalue()


def tone(rate_hz: int, seconds: float = 1.0, hz: float = 400.0) -> Samples:
    """A sine, half as loud as can be."""
    times = np.arange(round(rate_hz * seconds)) / rate_hz
    return (0.5 * np.sin(2 * np.pi * hz * times)).astype(np.float32)
