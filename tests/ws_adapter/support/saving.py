"""The state of a dialect, as another adapter gets it."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ws_adapter.protocol.core.blobs import Blobs, bytes_of
from ws_adapter.protocol.core.machine import Machine
from ws_adapter.protocol.live.resampler import SavedResampler
from ws_adapter.protocol.wire.codec import Samples


def save(machine: Machine, now: float, *, has_journal: bool = True) -> tuple[bytes, dict[int, bytes]]:
    """The state of a machine and the data that it refers to."""
    blobs = Blobs()
    blobs.begin()
    state = machine.save(now, blobs, has_journal=has_journal)
    assert state is not None
    return state, {number: bytes_of(data) for number, data in blobs.kept.items()}


def assert_torn_states_are_refused(
    new: Callable[[], Machine], state: bytes, blobs: Mapping[int, bytes], now: float
) -> None:
    """Assert that a machine takes no state that is cut, longer, empty or of another shape, or lacks data."""
    for torn in (state[:-1], state + b"\xc0", b"", b"\x90"):
        with pytest.raises(ValueError):
            new().restore(torn, blobs, now)
    with pytest.raises(KeyError):
        new().restore(state, {}, now)


def named(events: list[dict[str, Any]], kinds: str) -> str:
    """Return events as JSON whose ids tell the order in which they came up; `kinds` is a pattern of the
    kinds of ids."""
    ids: dict[str, str] = {}

    def name(found: re.Match[str]) -> str:
        return ids.setdefault(found[0], f"{found[1]}_{len(ids)}")

    return re.sub(rf"\b({kinds})_[0-9a-f]{{12,}}", name, json.dumps(events))


class NearestResampler:
    """A `Resampler` that holds nothing back: a restored session has units and edges of speech at the same
    samples."""

    def __init__(self, from_hz: int, to_hz: int) -> None:
        self._from_hz, self._to_hz = from_hz, to_hz
        self._count = 0

    def more(self, samples: Samples, *, last: bool = False) -> Samples:
        first, end = (
            -(-at * self._to_hz // self._from_hz) for at in (self._count, self._count + samples.size)
        )
        places = np.arange(first, end) * self._from_hz // self._to_hz - self._count
        self._count += samples.size
        return samples[places]

    def clear(self) -> None:
        self._count = 0

    def save(self) -> SavedResampler:
        return SavedResampler(b"", self._count)

    def restore(self, saved: SavedResampler) -> None:
        self._count = saved.returned
