"""The shipped model in company: each session says, token for token, what it says alone."""

import random
import wave
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inference_service.checkpoints.folder import load_duplex
from inference_service.checkpoints.location import find
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Piece
from inference_service.interface.setups import DuplexSetup, UnitInput, UnitOverrides
from inference_service.media.mel import SAMPLE_RATE
from tests.inference_service.engine.support.guests import Guest, play
from tests.support.long import seeds

RECORDINGS = sorted((Path(__file__).parents[3] / "clients/recordings").glob("*.wav"))
SLOTS = 3
Sound = NDArray[np.float32]


@cache
def shipped() -> DuplexRuntime:
    """The shipped model with clean slots; whoever uses one leaves it clean."""
    model, tokenizer, config = load_duplex(find("antiphon-mini"), torch.device("cpu"))
    return DuplexRuntime(antiphon_mini.components(model, tokenizer, config), SLOTS)


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


def guests(seed: int, count: int) -> list[Guest]:
    rng, info = random.Random(seed), shipped().info
    made = []
    for units in [rng.randint(5, 8) for _ in range(count)]:
        prompt = rng.choice(["You are a helpful assistant.", "Answer briefly.", ""])
        listens, temperature = rng.choice([0, 0, 1]), rng.choice([0.7, 1.2])
        settings = replace(info.duplex_defaults, force_listen_count=listens, temperature=temperature)
        setup = DuplexSetup(prompt, settings, info.window, rng.randrange(2**63))
        made.append(Guest(setup, [(UnitInput(pcm), UnitOverrides()) for pcm in talk(rng, units)]))
    return made


def require_same(guest: Guest, expected: Guest) -> None:
    assert guest.summary() == expected.summary()
    np.testing.assert_allclose(guest.sound, expected.sound, atol=1e-4)


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_overlapping_sessions_answer_as_when_alone(seed: int) -> None:
    together = guests(seed, 5)
    play(shipped(), list(together), random.Random(seed), list(range(SLOTS)))
    for guest, own in zip(together, guests(seed, 5), strict=True):
        play(shipped(), [own], random.Random(0), [0])
        require_same(guest, own)
    words = [e for guest in together for e in guest.told if isinstance(e, Piece) and e.token_ids]
    assert len(words) >= 5, "else there was little to compare"


def test_session_in_used_slot_answers_as_in_fresh_engine() -> None:
    fresh = guests(3, 2)[1]
    play(shipped.__wrapped__(), [fresh], random.Random(0), [0])
    first, second = guests(3, 2)
    play(shipped(), [first, second], random.Random(0), [0])
    assert first.sound.any()
    require_same(second, fresh)
