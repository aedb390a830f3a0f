"""Cuts a stream of appends into units of one second."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from ws_adapter.codec import Clip

UNIT_SAMPLES: Final = 16_000
"""One second at 16 kHz."""

UNIT_BYTES: Final = UNIT_SAMPLES * 4

NEARLY_A_UNIT: Final = 15_840
"""A lone append of at least this many samples is a second that lost some to rounding in a resampler."""

SILENCE: Final = bytes(UNIT_BYTES)


@dataclass(slots=True, eq=False)
class Unit:
    """One second of input.

    `append` is the number of the append that completed it, `ready_at` when that was, in seconds of the
    session's clock. `audio` is float32 little-endian, `UNIT_BYTES` long.
    """

    audio: bytes
    input_id: str
    append: int
    ready_at: float
    force_listen: bool = False
    padded_samples: int = 0
    clipped_samples: int = 0
    ignored_frames: int = 0
    injected_silence: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """One accepted append. `ignored_frames` counts pictures that came along and were not looked at."""

    clip: Clip
    input_id: str
    force_listen: bool = False
    ignored_frames: int = 0

    @property
    def seconds(self) -> float:
        """Length of its audio."""
        return self.clip.samples.size / UNIT_SAMPLES


class UnitCutter:
    """Joins appends and cuts them into units; what is shorter than a unit is carried over.

    `flush_s`: so long after the last append, the carry is padded and runs as a unit.
    """

    def __init__(self, flush_s: float) -> None:
        self._flush_s = flush_s
        self._carry = bytearray()
        self._appends = 0
        self._input_id = ""
        self._last_append_at = 0.0
        self._clipped = 0
        self._frames = 0

    @property
    def flush_at(self) -> float | None:
        """When `flush` is due; None while nothing is carried."""
        return self._last_append_at + self._flush_s if self._carry else None

    def append(self, append: Append, now: float) -> list[Unit]:
        """The units that `append` completes, in order; with `force_listen` nothing stays behind."""
        self._appends += 1
        self._input_id = append.input_id
        self._last_append_at = now
        self._clipped += append.clip.clipped
        self._frames += append.ignored_frames
        audio = append.clip.samples.astype("<f4", copy=False).tobytes()
        alone = not self._carry and NEARLY_A_UNIT <= append.clip.samples.size < UNIT_SAMPLES
        if append.force_listen or alone:
            return self._cut(audio, now, to_the_end=True, force_listen=append.force_listen)
        return self._cut(audio, now)

    def flush(self, now: float) -> list[Unit]:
        """The carry, padded to a unit; empty if nothing is carried."""
        return self._cut(b"", now, to_the_end=True) if self._carry else []

    def silence(self, now: float) -> Unit:
        """A unit of silence in the name of the last append."""
        return Unit(SILENCE, self._input_id, self._appends, now, injected_silence=True)

    def restamp(self, now: float) -> None:
        """Counts the time until `flush` from `now`, for input that was held."""
        self._last_append_at = now

    def _cut(
        self, audio: bytes, now: float, to_the_end: bool = False, force_listen: bool = False
    ) -> list[Unit]:
        if self._carry:
            audio = bytes(self._carry) + audio
            self._carry.clear()
        units = []
        for second in _seconds(audio):
            short = UNIT_BYTES - len(second)
            if short and not to_the_end:
                self._carry += second
                break
            whole = second + bytes(short) if short else second
            units.append(self._unit(whole, now, force_listen, padded=short // 4))
        if force_listen and not units:
            units.append(self._unit(SILENCE, now, force_listen, padded=UNIT_SAMPLES))
        return units

    def _unit(self, audio: bytes, now: float, force_listen: bool, padded: int) -> Unit:
        unit = Unit(audio, self._input_id, self._appends, now, force_listen, padded)
        unit.clipped_samples, unit.ignored_frames = self._clipped, self._frames
        self._clipped = self._frames = 0
        return unit


def _seconds(audio: bytes) -> Iterator[bytes]:
    """Slices of at most a unit; the whole is handed on as it is when it is one unit."""
    if len(audio) == UNIT_BYTES:
        yield audio
        return
    for start in range(0, len(audio), UNIT_BYTES):
        yield audio[start : start + UNIT_BYTES]


NO_AUDIO: Final = Clip(np.zeros(0, np.float32), 0)
"""The audio of an append that holds none."""
