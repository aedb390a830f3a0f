"""Immutable data that a saved state refers to by numbers, so that a journal writes each piece once."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import numpy as np

from ws_adapter.protocol.wire.codec import Samples

Data: TypeAlias = bytes | Samples
"""Bytes, or float32 samples that nobody changes."""

Saved: TypeAlias = Mapping[int, bytes]
"""The data that a saved state refers to."""


class Blobs:
    """Gives each piece of data one number for as long as one state after another refers to it."""

    def __init__(self) -> None:
        self.kept: dict[int, Data] = {}
        """What the newest state refers to, by number."""
        self._numbers: dict[int, int] = {}
        """By identity, which is unique while `kept` holds the data."""
        self._before: dict[int, Data] = {}
        self._numbers_before: dict[int, int] = {}
        self._last = 0

    def begin(self) -> None:
        """Begin a state."""
        self._before, self.kept = self.kept, {}
        self._numbers_before, self._numbers = self._numbers, {}

    def keep(self, data: Data) -> int:
        """Return the number of data to which the state refers."""
        key = id(data)
        number = self._numbers.get(key) or self._numbers_before.get(key)
        if number is None:
            self._last += 1
            number = self._last
        self.kept[number], self._numbers[key] = data, number
        return number

    def keep_all(self, pieces: Iterable[Data]) -> tuple[int, ...]:
        """Return the numbers of several pieces, in their order."""
        return tuple(map(self.keep, pieces))

    @property
    def size(self) -> int:
        """Bytes of what the newest state refers to."""
        return sum(len(data) if isinstance(data, bytes) else data.nbytes for data in self.kept.values())


def bytes_of(data: Data) -> bytes:
    """Return data as bytes."""
    return data if isinstance(data, bytes) else data.tobytes()


def samples_of(saved: Saved, numbers: Iterable[int]) -> list[Samples]:
    """Return saved samples. Raises `KeyError` or `ValueError` where they are missing or torn."""
    return [np.frombuffer(saved[number], np.float32) for number in numbers]
