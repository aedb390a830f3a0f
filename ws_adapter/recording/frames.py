"""Frames as a recording keeps them: JSON in which references to files stand for audio and images."""

from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final, TypeAlias

import msgspec

from ws_adapter.codec import MAX_ITEMS

HEAD_BYTES: Final = 1_000
"""How much is kept of a frame that is not an event."""


class Media(Enum):
    """What a base64 value holds."""

    SPEECH = auto()
    """A piece of the conversation."""
    VOICE = auto()
    """Reference audio."""
    IMAGE = auto()


Save: TypeAlias = Callable[[Media, str, bool], Any]
"""Given what a value holds, its text, and whether samples are PCM16: what stands in its place."""

_FIELDS: Final = {
    **dict.fromkeys(("audio", "audio_base64", "audio_data"), Media.SPEECH),
    **dict.fromkeys(("ref_audio", "ref_audio_base64", "tts_ref_audio", "tts_ref_audio_base64"), Media.VOICE),
    **dict.fromkeys(
        ("video_frames", "frame_base64_list", "frames", "video_frame", "frame_base64", "frame", "image"),
        Media.IMAGE,
    ),
}
_SPELLED_OUT: Final = frozenset({"data", "base64", "audio_base64"})
"""Names inside the object that may stand for a base64 value."""


class Unreadable(Exception):
    """The frame is no event."""


def read(frame: bytes) -> Any:
    """The event in a frame of either direction; raises `Unreadable`."""
    # As in the decoder of the dialects: millions of tiny items are no event.
    if len(frame) > 2 * MAX_ITEMS and frame.count(b",") > MAX_ITEMS:
        raise Unreadable
    try:
        return msgspec.json.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unreadable from None


def head(frame: bytes) -> str:
    """The beginning of a frame that is no event, as text that fits into JSON."""
    return frame[:HEAD_BYTES].decode(errors="backslashreplace")


def with_references(value: Any, save: Save) -> Any:
    """`value` with what `save` returns in the place of each base64 value, in the order of the event."""
    return _replace(value, None, False, save)


def _replace(value: Any, media: Media | None, is_pcm16: bool, save: Save) -> Any:
    if isinstance(value, dict):
        if "format" in value:
            is_pcm16 = value["format"] == "pcm16"
        return {key: _replace(item, _media(key, media), is_pcm16, save) for key, item in value.items()}
    if isinstance(value, list):
        return [_replace(item, media, is_pcm16, save) for item in value]
    if isinstance(value, str) and value and media is not None:
        return save(media, value, is_pcm16)
    return value


def _media(key: str, outer: Media | None) -> Media | None:
    if key in _SPELLED_OUT and outer is not None:
        return outer
    # At the root, `data` is a picture's name in the event `video_frame`.
    return Media.IMAGE if key == "data" else _FIELDS.get(key)
