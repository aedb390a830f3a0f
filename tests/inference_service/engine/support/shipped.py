"""The shipped model, and recorded questions for it."""

import random
import wave
from functools import cache
from pathlib import Path

import numpy as np
import torch

from inference_service.checkpoints.folder import load_duplex
from inference_service.checkpoints.location import find
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.media.mel import SAMPLE_RATE
from tests.inference_service.engine.support.guests import Sound

RECORDINGS = sorted((Path(__file__).parents[4] / "clients/recordings").glob("*.wav"))


@cache
def shipped() -> DuplexRuntime:
    """Return the shipped model; each test must leave its slots clean."""
    model, tokenizer, config = load_duplex(find("antiphon-mini"), torch.device("cpu"))
    return DuplexRuntime(antiphon_mini.components(model, tokenizer, config), 3)


def recorded(path: Path) -> Sound:
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels()) == (SAMPLE_RATE, 1)
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2")
    return pcm.astype(np.float32) / np.float32(32768)


def talk(rng: random.Random, units: int) -> list[Sound]:
    """Questions, pauses and noise, cut into seconds wherever they fall."""
    parts: list[Sound] = []
    while sum(map(len, parts)) < units * SAMPLE_RATE:
        parts.append(np.zeros(rng.randrange(SAMPLE_RATE), np.float32))
        parts.append(recorded(rng.choice(RECORDINGS)) * np.float32(rng.uniform(0.4, 1.2)))
    sound = np.concatenate(parts)[: units * SAMPLE_RATE]
    noise = np.random.default_rng(rng.randrange(2**32)).standard_normal(len(sound)) * 10 ** rng.uniform(
        -4, -2
    )
    return np.split((sound + noise).astype(np.float32), units)
