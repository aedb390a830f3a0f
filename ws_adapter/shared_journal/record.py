"""The format of a session's journal in Redis: settings, and entries of five types."""

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from ws_adapter.worker.journal import KeptUnit, Parts

FORMAT: Final = 2
"""The version of these records and of the state; no adapter takes over a session of another version."""


class Settings(Struct, array_like=True, frozen=True):
    """Settings of a session at its worker."""

    format: int
    label: str
    config: bytes
    """A serialised `pb.PrefillRequest`; empty if the session has no journal for failover."""


class UnitInput(Struct, array_like=True, tag=0, frozen=True):
    """The input of a unit: a serialised `pb.PrefillRequest`."""

    number: int
    input: bytes


class UnitAnswer(Struct, array_like=True, tag=1, frozen=True):
    """The answer to a unit: a serialised `pb.UnitRecord`, and the number of samples of its sound."""

    number: int
    record: bytes
    samples: int


class Event(Struct, array_like=True, tag=2, frozen=True):
    """An event for the client, in the form that is sent."""

    number: int
    text: bytes


class State(Struct, array_like=True, tag=3, frozen=True):
    """The state of the session after all other entries."""

    state: bytes


class Blob(Struct, array_like=True, tag=4, frozen=True):
    """Data to which the state refers by number."""

    number: int
    data: bytes


Entry: TypeAlias = UnitInput | UnitAnswer | Event | State | Blob

encode: Final = msgspec.msgpack.Encoder().encode
_read_settings: Final = msgspec.msgpack.Decoder(Settings).decode
_read_entry: Final = msgspec.msgpack.Decoder(Entry).decode


class StoredJournal(Struct, frozen=True):
    """The journal of a session, as read from Redis."""

    settings: Settings
    was_handed_over: bool
    """Whether its adapter handed the session over; else that adapter died."""
    state: bytes
    units: dict[int, KeptUnit]
    events: dict[int, Parts]
    blobs: dict[int, bytes]


def read(was_handed_over: bool, settings: bytes, entries: Sequence[bytes]) -> StoredJournal:
    """Decode the journal of a session. Raises `ValueError` if it is incomplete or of another version."""
    found = _read_settings(settings)
    if found.format != FORMAT:
        raise ValueError(f"the journal has the format {found.format}")
    units: dict[int, KeptUnit] = {}
    events: dict[int, Parts] = {}
    blobs: dict[int, bytes] = {}
    state = b""
    for data in entries:
        match _read_entry(data):
            case UnitInput() as unit:
                units[unit.number] = KeptUnit(unit.number, (unit.input,))
            case UnitAnswer() as answer:
                if (kept := units.get(answer.number)) is None:
                    raise ValueError(f"unit {answer.number} has no input")
                kept.record, kept.samples = answer.record, answer.samples
            case Event() as event:
                events[event.number] = (event.text,)
            case Blob() as blob:
                blobs[blob.number] = blob.data
            case State() as last:
                state = last.state
    return StoredJournal(found, was_handed_over, state, units, events, blobs)
