"""Sessions of every kind in one engine, coming and going: each says what it says alone."""

import random
from functools import cache

import numpy as np
import pytest

from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Piece
from inference_service.interface.setups import ChatSetup, DuplexSetup, TokensSetup, TranscribeSetup
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.support.guests import guests, play
from tests.inference_service.engine.support.left import is_clean
from tests.support.long import seeds

SLOTS = 4
KINDS = {DuplexSetup, ChatSetup, TranscribeSetup, TokensSetup}


@cache
def runtime() -> DuplexRuntime:
    """A tiny model with every sense; whoever uses a slot leaves it clean."""
    return DuplexRuntime(antiphon_mini.components(*tiny.model(sees=True)), SLOTS)


@pytest.mark.parametrize("seed", seeds(1, 2, 3))
def test_session_in_mixed_crowd_gets_same_answers_as_alone(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = guests(runtime().info, seed, 9)
    with monkeypatch.context() as as_on_a_gpu:
        as_on_a_gpu.setattr(runtime(), "by_rows", False)
        play(runtime(), list(crowd), random.Random(seed), list(range(SLOTS)))

    assert is_clean(runtime().language.cache)
    assert is_clean(runtime().speaker.decoder.cache)
    stayed = [
        (guest, own)
        for guest, own in zip(crowd, guests(runtime().info, seed, 9), strict=True)
        if not guest.passing
    ]
    for guest, own in stayed:
        play(runtime(), [own], random.Random(0), [0])
        assert guest.summary() == own.summary()
        np.testing.assert_allclose(guest.sound, own.sound, atol=1e-4)
    # Else there was little to compare.
    assert {type(guest.setup) for guest, _ in stayed} == KINDS
    assert sum(len(guest.sound) > 0 for guest, _ in stayed) >= 3
    assert sum(isinstance(e, Piece) and bool(e.text) for guest, _ in stayed for e in guest.told) >= 20
