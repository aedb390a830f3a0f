"""Reads input: what the append events of all dialects have in common."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ws_adapter.protocol.duplex.input import UNIT_BYTES, Append
from ws_adapter.protocol.media.images import read_frames
from ws_adapter.protocol.wire.codec import NO_AUDIO, decode_audio
from ws_adapter.protocol.wire.errors import invalid, missing
from ws_adapter.protocol.wire.events import AudioEncoding, Picture

LONGEST_TEXT: Final = 1.5
"""Characters of base64 for each byte of audio, with an eighth of white space."""


@dataclass(frozen=True, slots=True)
class GivenInput:
    """The fields of an append whatever their names are; `audio_path` and `frames_path` are those names."""

    audio: str
    audio_path: str
    frames: Sequence[Picture] = ()
    frames_path: str = ""
    encoding: AudioEncoding = "f32"
    force_listen: bool = False
    max_slice_nums: int | None = None
    input_id: str | None = None


@dataclass(frozen=True, slots=True)
class InputRules:
    """`takes_frames`: the model sees; else pictures are counted and not looked at."""

    max_append_s: float
    takes_frames: bool
    new_id: Callable[[str], str]


def read_append(given: GivenInput, rules: InputRules, max_slice_nums: int | None) -> Append:
    """Checks an append whole; raises `Refusal`, and then nothing of it holds.

    `max_slice_nums` is the session's, for appends that do not say.
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
        given.input_id or rules.new_id("input"),
        given.force_listen,
        ignored_frames=0 if rules.takes_frames else len(given.frames),
        frames=frames,
        max_slice_nums=given.max_slice_nums or max_slice_nums,
    )
    if append.seconds > rules.max_append_s:
        raise invalid(
            given.audio_path,
            f"expected at most {rules.max_append_s:g} s of audio, got {append.seconds:.6g} s",
        )
    return append


def _check_length(given: GivenInput, most_s: float) -> None:
    """Refuses text that cannot be so little audio, before it is decoded."""
    if len(given.audio) > most_s * UNIT_BYTES * LONGEST_TEXT:
        size = len(given.audio) * 3 // 4
        raise invalid(given.audio_path, f"expected at most {most_s:g} s of audio, got about {size} bytes")


def first_given(places: Iterable[tuple[str, str | None]], otherwise: str) -> tuple[str, str]:
    """Value and path of the first of `places`, pairs of path and value, that has one.

    Without any the value is empty and the path is `otherwise`.
    """
    return next(((value, path) for path, value in places if value), ("", otherwise))


def first_frames(
    places: Iterable[tuple[str, Sequence[Picture] | None]],
) -> tuple[Sequence[Picture], str]:
    """Pictures and path of the first of `places` that has any."""
    return next(((pictures, path) for path, pictures in places if pictures), ((), ""))
