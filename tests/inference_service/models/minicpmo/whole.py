"""A whole MiniCPM-o folder: the tiny checkpoint as published, with a converted vocoder and a voice."""

import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inference_service.checkpoints.vocoder_conversion import Recording, convert
from tests.inference_service.models.minicpmo import published
from tests.inference_service.models.token2wav import published as published_vocoder

RATE = 16_000
REFERENCE = Path("assets") / "HT_ref_audio.wav"


def voice(seed: int, seconds: float = 1.5) -> NDArray[np.float32]:
    """Return a voice: a tone whose pitch depends on `seed`, and noise."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * RATE)) / RATE
    tone = 0.2 * np.sin(2 * np.pi * (100 + 40 * seed) * time)
    return (tone + 0.02 * rng.standard_normal(len(time))).astype(np.float32)


def write(folder: Path, *, vocoder: bool = True, template: str = "") -> Path:
    """Write the checkpoint; the vocoder's default voice is that of the published recording beside it.

    `template` is another chat template than its own, which knows no tools.
    """
    published.write(folder)
    if template:
        published.change_json(
            folder / "tokenizer_config.json", lambda raw: raw.update(chat_template=template)
        )
    published_vocoder.write(folder / "assets" / "token2wav")
    write_wav(folder / REFERENCE, voice(0))
    if vocoder:
        voices = {"default": Recording(voice(0), RATE), "anna": Recording(voice(1), RATE)}
        convert(folder / "assets" / "token2wav", folder / "vocoder", voices)
    return folder


def write_wav(path: Path, pcm: NDArray[np.float32]) -> None:
    """Mono, 16 bits."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((pcm * 32767).astype("<i2").tobytes())
