"""The state of a dialect, as another adapter gets it."""

from ws_adapter.protocol.core.blobs import Blobs, bytes_of
from ws_adapter.protocol.core.machine import Machine


def save(machine: Machine, now: float, *, has_journal: bool = True) -> tuple[bytes, dict[int, bytes]]:
    """The state of a machine and the data that it refers to."""
    blobs = Blobs()
    blobs.begin()
    state = machine.save(now, blobs, has_journal=has_journal)
    assert state is not None
    return state, {number: bytes_of(data) for number, data in blobs.kept.items()}
