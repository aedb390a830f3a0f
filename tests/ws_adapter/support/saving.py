"""The state of a dialect, as another adapter gets it."""

import numpy as np

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


class NearestResampler:
    """A `Resampler` that holds nothing back, in a test whose subject is no sound: another one that goes on
    makes units and edges of speech at the very same samples."""

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
