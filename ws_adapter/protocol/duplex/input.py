"""Input of a full-duplex session: read, cut into units, and continued with silence."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from ws_adapter.protocol.core.answer import Unit
from ws_adapter.protocol.core.blobs import ago
from ws_adapter.protocol.duplex.saved import SavedCutter, SavedTail
from ws_adapter.protocol.media.images import read_frames
from ws_adapter.protocol.wire.codec import NO_AUDIO, Clip, decode_audio
from ws_adapter.protocol.wire.errors import invalid, missing
from ws_adapter.protocol.wire.events import MAX_FRAMES, AudioEncoding, Picture

RATE_HZ: Final = 16_000
"""Sample rate of the sound of all units."""

BYTES_PER_S: Final = RATE_HZ * 4

SECOND_S: Final = 1.0
"""The length in seconds of the units of most models, and of all units in dialects with a fixed length."""

NEARLY_A_SECOND: Final = 15_840
"""A lone append of at least this many samples counts as a second: a resampler may lose some by rounding."""

LATE_S: Final = 0.2
"""While the model speaks, an incomplete unit is padded this many seconds after its due time.

Units of at most this length are not padded early: silence in the middle of such a unit would be a click, and
would close no gap."""

SETTLED_S: Final = 0.1
"""The least seconds from the last append to a late flush, so that bursts of late appends stay together."""

LONGEST_TEXT: Final = 1.5
"""The most characters of base64 for each byte of audio: 4/3, and an eighth more for white space."""

BURST_LEAD_S: Final = 1.5
"""A run of appends is a burst if its audio is longer than the time of its arrival by more than this."""

BURST_WAIT_S: Final = 1.25
RUN_GAP_S: Final = 3.0
"""Appends closer together than this make one run; an append without such a neighbour is isolated."""


# ---------------------------------------------------------------------------------------- reading


class Append(Struct, frozen=True):
    """One accepted append. `ignored_frames` counts its pictures that were not read."""

    clip: Clip
    input_id: str
    force_listen: bool = False
    ignored_frames: int = 0
    frames: tuple[bytes, ...] = ()
    max_slice_nums: int | None = None

    @property
    def seconds(self) -> float:
        """Length of its audio."""
        return self.clip.count / RATE_HZ


class GivenInput(Struct, frozen=True):
    """The fields of an append of any dialect; `audio_path` and `frames_path` are their paths in the event."""

    audio: str
    audio_path: str
    frames: Sequence[Picture] = ()
    frames_path: str = ""
    encoding: AudioEncoding = "f32"
    force_listen: bool = False
    max_slice_nums: int | None = None
    input_id: str | None = None


class InputRules(Struct, frozen=True):
    """The rules for input. Without `takes_frames`, pictures are only counted."""

    max_append_s: float
    takes_frames: bool
    new_token: Callable[[], str]


def read_append(given: GivenInput, rules: InputRules, max_slice_nums: int | None) -> Append:
    """Validate a whole append and return it. Raises `Refusal`; then no part of the append takes effect.

    `max_slice_nums` is the value of the session, for appends without one.
    """
    _check_length(given, rules.max_append_s)
    clip = decode_audio(given.audio, given.encoding, given.audio_path) if given.audio else NO_AUDIO
    if not clip.count and not given.force_listen:
        raise missing(given.audio_path, "base64 audio of at least one sample")
    frames: tuple[bytes, ...] = ()
    if rules.takes_frames and not clip.undecoded:
        frames = read_frames(given.frames, given.frames_path)
    append = Append(
        clip,
        given.input_id or f"input_{rules.new_token()}",
        given.force_listen,
        ignored_frames=0 if rules.takes_frames else len(given.frames),
        frames=frames,
        max_slice_nums=given.max_slice_nums or max_slice_nums,
    )
    if (seconds := append.seconds) > rules.max_append_s:
        raise invalid(
            given.audio_path, f"expected at most {rules.max_append_s:g} s of audio, got {seconds:.6g} s"
        )
    return append


def _check_length(given: GivenInput, most_s: float) -> None:
    """Raise `Refusal` for text that is too long for `most_s` seconds of audio, before it is decoded."""
    if len(given.audio) > most_s * BYTES_PER_S * LONGEST_TEXT:
        size = len(given.audio) * 3 // 4
        raise invalid(given.audio_path, f"expected at most {most_s:g} s of audio, got about {size} bytes")


def first_given(event: object, names: Sequence[str]) -> tuple[Any, str]:
    """Return value and name of the first field of `event` among `names` that has a value; without one, None
    and the first name."""
    for name in names:
        if value := getattr(event, name):
            return value, name
    return None, names[0]


# ---------------------------------------------------------------------------------------- cutting


class UnitCutter:
    """The cutter of units: joins appends and cuts them into units of `unit_s`; a remainder is carried over.

    `flush_s` seconds after the last append, the remainder is padded and becomes a unit. While the model
    speaks, that happens as soon as a unit is late: without input the model's speech would have a gap.
    """

    def __init__(self, flush_s: float, unit_s: float = SECOND_S) -> None:
        self.size = 0
        """The bytes of carried audio and pictures."""
        self.flush_at: float | None = None
        """The time at which `flush` is due; None while no audio is carried."""
        self.late_at: float | None = None
        """The time at which `flush` is due while the model speaks."""
        self._flush_s = flush_s
        self._unit_s = unit_s
        self._samples = round(unit_s * RATE_HZ)
        self._bytes = 4 * self._samples
        self._silence = bytes(self._bytes)
        self._carry = bytearray()
        self._carries_undecoded = False
        self._appends = 0
        self._input_id = ""
        self._last_append_at = 0.0
        self._due_at = 0.0
        """The time at which a steady stream would complete the next unit."""
        self._clipped = 0
        self._ignored_frames = 0
        self._frames: tuple[bytes, ...] = ()
        self._max_slice_nums: int | None = None
        self._force_next = False

    def append(self, append: Append, now: float) -> list[Unit]:
        """Return the units that `append` completes, in order; `force_listen` leaves no remainder."""
        self._appends += 1
        self._input_id = append.input_id
        self._last_append_at = now
        self._clipped += append.clip.clipped
        self._ignored_frames += append.ignored_frames
        self._max_slice_nums = append.max_slice_nums
        undecoded = append.clip.undecoded
        # Silence of the same duration stands for undecoded audio.
        audio = bytes(4 * undecoded) if undecoded else append.clip.data
        alone = not self._carry and NEARLY_A_SECOND <= append.clip.count < self._samples
        to_the_end = append.force_listen or alone
        units = self._cut(audio, now, to_the_end=to_the_end, force_listen=append.force_listen)
        self._mark(units, bool(undecoded))
        self._spread(append.frames, units)
        self._settle()
        return units

    def hold_frame(self, frame: bytes | None) -> None:
        """Keep a picture for the next unit, which gets the newest `MAX_FRAMES`; None is only counted."""
        if frame is None:
            self._ignored_frames += 1
            return
        self._keep(frame)
        self._settle()

    def force_next(self) -> None:
        """Run the next unit with `force_listen`."""
        self._force_next = True

    def flush(self, now: float) -> list[Unit]:
        """Return the carry, padded to a unit; empty if nothing is carried."""
        units = self._cut(b"", now, to_the_end=True) if self._carry else []
        self._mark(units, undecoded=False)
        # The unit was late by `LATE_S`; the delay of the next unit must not add to that.
        self._due_at -= LATE_S
        self._settle()
        return units

    def silence(self, now: float) -> Unit:
        """Return a unit of silence that continues the last append."""
        self._due_at = now + self._unit_s
        self._settle()
        return Unit(self._silence, self._input_id, self._appends, now, injected_silence=True)

    def restamp(self, now: float) -> None:
        """Count the time until `flush` from `now`, for input that was held."""
        self._last_append_at = now
        self._due_at = now + self._unit_s
        self._settle()

    def save(self, now: float) -> SavedCutter:
        """Return the state, with the carried input."""
        return SavedCutter(
            bytes(self._carry),
            self._carries_undecoded,
            self._appends,
            self._input_id,
            now - self._last_append_at,
            now - self._due_at,
            self._clipped,
            self._ignored_frames,
            self._frames,
            self._max_slice_nums,
            self._force_next,
        )

    def restore(self, saved: SavedCutter, now: float) -> None:
        """Go on from a saved state."""
        self._carry = bytearray(saved.carry)
        self._carries_undecoded = saved.carries_undecoded
        self._appends, self._input_id = saved.appends, saved.input_id
        self._last_append_at, self._due_at = now - saved.last_append_ago, now - saved.due_ago
        self._clipped, self._ignored_frames = saved.clipped, saved.ignored_frames
        self._frames, self._max_slice_nums = saved.frames, saved.max_slice_nums
        self._force_next = saved.force_next
        self._settle()

    def _settle(self) -> None:
        """Update the size of the carry and its deadlines."""
        self.size = len(self._carry) + (sum(map(len, self._frames)) if self._frames else 0)
        self.flush_at = self.late_at = None
        if self._carry:
            self.flush_at = self._last_append_at + self._flush_s
            late_at = max(self._due_at + LATE_S, self._last_append_at + SETTLED_S)
            self.late_at = min(self.flush_at, late_at) if self._unit_s > LATE_S else self.flush_at

    def _cut(
        self, audio: bytes, now: float, to_the_end: bool = False, force_listen: bool = False
    ) -> list[Unit]:
        if self._carry:
            audio = bytes(self._carry) + audio
            self._carry.clear()
        units = []
        for piece in self._pieces(audio):
            short = self._bytes - len(piece)
            if short and not to_the_end:
                self._carry += piece
                break
            whole = piece + bytes(short) if short else piece
            units.append(self._unit(whole, now, force_listen, padded=short // 4))
        if force_listen and not units:
            units.append(self._unit(self._silence, now, force_listen, padded=self._samples))
        if units:
            self._due_at = now + self._unit_s
        return units

    def _unit(self, audio: bytes, now: float, force_listen: bool, padded: int) -> Unit:
        unit = Unit(audio, self._input_id, self._appends, now, force_listen or self._force_next, padded)
        unit.clipped_samples, unit.ignored_frames = self._clipped, self._ignored_frames
        unit.frames, unit.max_slice_nums = self._frames, self._max_slice_nums
        self._clipped = self._ignored_frames = 0
        self._frames, self._force_next = (), False
        return unit

    def _mark(self, units: list[Unit], undecoded: bool) -> None:
        """Drop those of the newest `units` with undecoded audio: all of them if `undecoded`, else at most the
        first, if undecoded audio was carried over."""
        for unit in units if undecoded else units[: self._carries_undecoded]:
            unit.audio, unit.frames, unit.is_dropped = self._silence, (), True
        if undecoded or units:
            self._carries_undecoded = undecoded and bool(self._carry)

    def _spread(self, frames: tuple[bytes, ...], units: list[Unit]) -> None:
        """Give frame j of F to unit floor(j * U / F) of the U units of its append; without units the
        frames wait."""
        for j, frame in enumerate(frames):
            if units:
                unit = units[j * len(units) // len(frames)]
                unit.frames = (*unit.frames, frame)[-MAX_FRAMES:]
            else:
                self._keep(frame)

    def _keep(self, frame: bytes) -> None:
        self._frames = (*self._frames, frame)[-MAX_FRAMES:]

    def _pieces(self, audio: bytes) -> Sequence[bytes]:
        """Cut audio into pieces of at most a unit; a single unit is not copied."""
        if len(audio) == self._bytes:
            return (audio,)
        return [audio[start : start + self._bytes] for start in range(0, len(audio), self._bytes)]


# ---------------------------------------------------------------------------------------- silence


class SilenceTail:
    """The schedule of units of silence after a burst or an isolated append.

    Silence lasts at most `limit_s` seconds while the model has not begun to speak, then until the end of its
    turn; there is none with a `limit_s` of 0. All times are seconds of the session's clock.
    """

    def __init__(self, limit_s: float, unit_s: float = SECOND_S) -> None:
        self.due_at: float | None = None
        """The time at which the next unit of silence is due; None without one."""
        self._limit = round(limit_s / unit_s)
        self._unit_s = unit_s
        self._run_start = 0.0
        self._run_audio_s = 0.0
        self._run_appends = 0
        self._last_append: float | None = None
        self._last_fed: float | None = None
        self._fed = 0
        self._spoke = False
        self._over = False

    def appended(self, audio_s: float, now: float) -> None:
        """Handle an append: a running tail stops, and a new one may follow."""
        if self._last_append is None or now - self._last_append >= RUN_GAP_S:
            self._run_start = now
            self._run_audio_s = 0.0
            self._run_appends = 0
        self._run_audio_s += audio_s
        self._run_appends += 1
        self._last_append = now
        self._last_fed = None
        self._fed = 0
        self._spoke = False
        # An append without audio only interrupts: there is nothing to answer.
        self._over = not audio_s
        self._settle()

    def restamp(self, now: float) -> None:
        """Count time from `now`, as if all held input had just arrived."""
        if self._last_append is not None:
            self._run_start = self._last_append = now
            self._settle()

    def spoke(self) -> None:
        """Note that the model spoke in a unit."""
        self._spoke = True
        self._settle()

    def turn_ended(self, heard_everything: bool) -> None:
        """Note the end of the model's turn; `heard_everything`: no real input waits, so the tail ends."""
        if self._spoke and heard_everything:
            self._over = True
        self._spoke = False
        self._settle()

    def fed(self, now: float) -> None:
        """Count a unit of silence that was fed."""
        self._last_fed = now
        self._fed += 1
        self._settle()

    def save(self, now: float) -> SavedTail:
        """Return the state."""
        return SavedTail(
            now - self._run_start,
            self._run_audio_s,
            self._run_appends,
            ago(self._last_append, now),
            ago(self._last_fed, now),
            self._fed,
            self._spoke,
            self._over,
        )

    def restore(self, saved: SavedTail, now: float) -> None:
        """Go on from a saved state."""
        self._run_start, self._run_audio_s = now - saved.run_start_ago, saved.run_audio_s
        self._run_appends = saved.run_appends
        self._last_append = None if saved.last_append_ago is None else now - saved.last_append_ago
        self._last_fed = None if saved.last_fed_ago is None else now - saved.last_fed_ago
        self._fed, self._spoke, self._over = saved.fed, saved.spoke, saved.over
        self._settle()

    def _settle(self) -> None:
        last = self._last_append
        is_used_up = self._fed >= self._limit and not self._spoke
        if self._over or last is None or not self._limit or is_used_up:
            self.due_at = None
        elif self._last_fed is not None:
            self.due_at = self._last_fed + self._unit_s
        elif self._run_audio_s - (last - self._run_start) > BURST_LEAD_S:
            self.due_at = last + BURST_WAIT_S
        else:
            self.due_at = last + RUN_GAP_S if self._run_appends == 1 else None
