"""A spoken question to the shipped model, with a fault in the middle of the answer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import antiphon
from tests.e2e.conftest import Recording
from tests.support.patience import PATIENCE_S

SILENCE_S = 5


@dataclass(frozen=True)
class Answer:
    text: str
    samples: NDArray[np.float32]
    resumed: int

    def assert_equals(self, other: "Answer") -> None:
        assert self.text == other.text
        assert self.samples.shape == other.samples.shape
        assert np.allclose(self.samples, other.samples, rtol=0, atol=1e-4)


async def answer(
    url: str,
    recording: Recording,
    strike: Callable[[], None] | None = None,
    *,
    reconnect: bool = False,
    each_unit: bool = False,
) -> Answer:
    """Return the answer to a recording.

    Call `strike` once, while the model speaks and has a unit; with `each_unit` after every unit that is sent.
    """
    text, pieces, resumed = "", [np.zeros(0, np.float32)], 0
    units = recording.units(SILENCE_S)
    async with asyncio.timeout(3 * PATIENCE_S), antiphon.connect(url) as client:
        async with client.duplex(seed=7, reconnect=reconnect) as session:
            sent, told = 0, set[str | None]()
            async for event in session:
                match event:
                    case antiphon.TextDelta():
                        text += event.text
                        told.add(event.input_id)
                    case antiphon.AudioDelta():
                        pieces.append(event.samples)
                        told.add(event.input_id)
                    case antiphon.Listening() | antiphon.Interrupted():
                        told.add(event.input_id)
                    case antiphon.Resumed():
                        resumed += 1
                if len(told) == len(units):
                    break
                if sent == len(told) and sent < len(units) and not isinstance(event, antiphon.ConnectionLost):
                    await session.send_audio(units[sent])
                    sent += 1
                    if strike is not None and (text or each_unit):
                        strike()
                        strike = strike if each_unit else None
    return Answer(text, np.concatenate(pieces), resumed)
