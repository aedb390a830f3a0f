"""Cuts a stream of appends into units of one second."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ws_adapter.protocol.wire.codec import Clip
from ws_adapter.protocol.wire.events import MAX_FRAMES

UNIT_SAMPLES: Final = 16_000
"""One second at 16 kHz."""

UNIT_BYTES: Final = UNIT_SAMPLES * 4

NEARLY_A_UNIT: Final = 15_840
"""A lone append of at least this many samples is a second that lost some to rounding in a resampler."""

SILENCE: Final = bytes(UNIT_BYTES)

PERIOD_S: Final = 1.0
"""A steady stream completes a unit so often."""

LATE_S: Final = 0.2
"""While the model speaks, the carry waits so long beyond the second at which a unit was due."""

SETTLED_S: Final = 0.1
"""And so long for more appends: what was held up on its way comes at once, and is not to be torn."""


@dataclass(slots=True, eq=False)
class Unit:
    """One second of input.

    `append` is the number of the append that completed it, `ready_at` when that was, in seconds of the
    session's clock. `audio` is float32 little-endian, `UNIT_BYTES` long; `frames` are encoded pictures, the
    oldest first, of which a model that slices makes at most `max_slice_nums` slices each.
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
    frames: tuple[bytes, ...] = ()
    max_slice_nums: int | None = None
    is_undecoded: bool = False
    """A part of it was dropped before it was decoded: the unit cannot run."""

    @property
    def size(self) -> int:
        """Bytes of its input."""
        return len(self.audio) + sum(map(len, self.frames))


@dataclass(frozen=True, slots=True)
class Append:
    """One accepted append. `ignored_frames` counts pictures that came along and were not looked at."""

    clip: Clip
    input_id: str
    force_listen: bool = False
    ignored_frames: int = 0
    frames: tuple[bytes, ...] = ()
    max_slice_nums: int | None = None

    @property
    def seconds(self) -> float:
        """Length of its audio."""
        return self.clip.count / UNIT_SAMPLES


class UnitCutter:
    """Joins appends and cuts them into units; what is shorter than a unit is carried over.

    `flush_s`: so long after the last append, the carry is padded and runs as a unit. While the model speaks
    that happens as soon as a unit is late: without input there would be a hole in what it says.
    """

    def __init__(self, flush_s: float) -> None:
        self._flush_s = flush_s
        self._carry = bytearray()
        self._carries_undecoded = False
        self._appends = 0
        self._input_id = ""
        self._last_append_at = 0.0
        self._due_at = 0.0
        """When the next unit would be cut from a steady stream."""
        self._clipped = 0
        self._ignored_frames = 0
        self._frames: tuple[bytes, ...] = ()
        self._max_slice_nums: int | None = None
        self._force_next = False

    @property
    def size(self) -> int:
        """Bytes of audio and pictures that are carried."""
        return len(self._carry) + sum(map(len, self._frames))

    def flush_at(self, is_speaking: bool) -> float | None:
        """When `flush` is due, given whether the model is speaking; None while nothing is carried."""
        if not self._carry:
            return None
        flush_at = self._last_append_at + self._flush_s
        if not is_speaking:
            return flush_at
        return min(flush_at, max(self._due_at + LATE_S, self._last_append_at + SETTLED_S))

    def append(self, append: Append, now: float) -> list[Unit]:
        """The units that `append` completes, in order; with `force_listen` nothing stays behind."""
        self._appends += 1
        self._input_id = append.input_id
        self._last_append_at = now
        self._clipped += append.clip.clipped
        self._ignored_frames += append.ignored_frames
        self._max_slice_nums = append.max_slice_nums
        undecoded = append.clip.undecoded
        # What was not decoded takes its time nevertheless.
        audio = bytes(4 * undecoded) if undecoded else append.clip.data
        alone = not self._carry and NEARLY_A_UNIT <= append.clip.count < UNIT_SAMPLES
        to_the_end = append.force_listen or alone
        units = self._cut(audio, now, to_the_end=to_the_end, force_listen=append.force_listen)
        self._mark(units, bool(undecoded))
        self._spread(append.frames, units)
        return units

    def hold_frame(self, frame: bytes) -> None:
        """Keeps a picture for the next unit, which gets the newest `MAX_FRAMES`."""
        self._frames = (*self._frames, frame)[-MAX_FRAMES:]

    def force_next(self) -> None:
        """The next unit runs with `force_listen`."""
        self._force_next = True

    def flush(self, now: float) -> list[Unit]:
        """The carry, padded to a unit; empty if nothing is carried."""
        units = self._cut(b"", now, to_the_end=True) if self._carry else []
        self._mark(units, undecoded=False)
        # It was late, and the next one is not to be later still.
        self._due_at -= LATE_S
        return units

    def silence(self, now: float) -> Unit:
        """A unit of silence in the name of the last append."""
        self._due_at = now + PERIOD_S
        return Unit(SILENCE, self._input_id, self._appends, now, injected_silence=True)

    def restamp(self, now: float) -> None:
        """Counts the time until `flush` from `now`, for input that was held."""
        self._last_append_at = now
        self._due_at = now + PERIOD_S

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
        if units:
            self._due_at = now + PERIOD_S
        return units

    def _unit(self, audio: bytes, now: float, force_listen: bool, padded: int) -> Unit:
        unit = Unit(audio, self._input_id, self._appends, now, force_listen or self._force_next, padded)
        unit.clipped_samples, unit.ignored_frames = self._clipped, self._ignored_frames
        unit.frames, unit.max_slice_nums = self._frames, self._max_slice_nums
        self._clipped = self._ignored_frames = 0
        self._frames, self._force_next = (), False
        return unit

    def _mark(self, units: list[Unit], undecoded: bool) -> None:
        """Marks those of the newest `units` that hold anything undecoded, all of them or what was carried."""
        for unit in units if undecoded else units[: self._carries_undecoded]:
            unit.audio, unit.frames, unit.is_undecoded = SILENCE, (), True
        if undecoded or units:
            self._carries_undecoded = undecoded and bool(self._carry)

    def _spread(self, frames: tuple[bytes, ...], units: list[Unit]) -> None:
        """Gives frame j of F to unit floor(j * U / F) of the U units of its append; without any it waits."""
        for j, frame in enumerate(frames):
            if units:
                unit = units[j * len(units) // len(frames)]
                unit.frames = (*unit.frames, frame)[-MAX_FRAMES:]
            else:
                self.hold_frame(frame)


def _seconds(audio: bytes) -> Iterator[bytes]:
    """Slices of at most a unit; the whole is handed on as it is when it is one unit."""
    if len(audio) == UNIT_BYTES:
        yield audio
        return
    for start in range(0, len(audio), UNIT_BYTES):
        yield audio[start : start + UNIT_BYTES]
