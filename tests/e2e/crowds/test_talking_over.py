"""Tests of continuous user speech: the model talks over it for a bounded time, then listens again."""

from itertools import groupby

import numpy as np
import pytest
from numpy.typing import NDArray

import antiphon
from antiphon.protocol.events import AudioDelta, Listening
from antiphon_training.corpus.recipe import turn_bound
from antiphon_training.domains.mini import MINI
from tests.e2e.conftest import RATE, Recording

SECONDS = 30
AUDIBLE = 0.02


def without_pauses(pcm: NDArray[np.float32]) -> NDArray[np.float32]:
    """The sentence over and over, without the silence round it: float32 [seconds, 16000]."""
    heard = np.flatnonzero(np.abs(pcm) > AUDIBLE)
    said = pcm[heard[0] : heard[-1]]
    repeated = np.tile(said, -(-SECONDS * RATE // len(said)))
    return repeated[: SECONDS * RATE].reshape(SECONDS, RATE)


async def spoken_units(url: str, units: NDArray[np.float32], seed: int) -> list[bool]:
    spoken: list[bool] = []
    async with antiphon.connect(url) as client, client.duplex(seed=seed) as session:
        events = aiter(session)
        for unit in units:
            await session.send_audio(unit)
            while not isinstance(event := await anext(events), AudioDelta | Listening):
                pass
            spoken.append(isinstance(event, AudioDelta))
    return spoken


@pytest.mark.parametrize("name", ["name", "light"])
@pytest.mark.sample("name")
async def test_model_turns_over_continuous_user_speech_are_bounded(
    adapter: str, recordings: list[Recording], name: str
) -> None:
    (recording,) = [it for it in recordings if it.name == name]

    bound = turn_bound(MINI)
    spoken = await spoken_units(adapter.replace("http", "ws"), without_pauses(recording.pcm), seed=1)

    stretches = [(is_spoken, len(list(units))) for is_spoken, units in groupby(spoken)]
    assert sum(spoken) > bound.units, "this sentence no longer makes the model talk over it"
    assert max(units for is_spoken, units in stretches if is_spoken) <= bound.units
    between = [units for is_spoken, units in stretches[1:-1] if not is_spoken]
    assert between
    assert min(between) >= bound.rest
