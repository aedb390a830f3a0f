"""Frames in recordings: JSON with references to files in place of audio and images."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final, TypeAlias

import msgspec

from ws_adapter.protocol.live.sound import Format
from ws_adapter.protocol.media.reference_voice import RATE_HZ
from ws_adapter.protocol.wire.codec import check
from ws_adapter.protocol.wire.errors import InvalidUtf8, Refusal

HEAD_BYTES: Final = 1_000
"""The most bytes of a frame without an event that are recorded."""


class Media(Enum):
    """The content of a base64 value."""

    SPEECH = auto()
    """A piece of the conversation."""
    VOICE = auto()
    """Reference audio, or a clip in a message; saved as a WAV file."""
    IMAGE = auto()
    CLIP = auto()
    """Audio of an item, without a time in the conversation; saved in its original form."""


@dataclass(frozen=True)
class Coding:
    """The coding of the samples in an event."""

    is_pcm16: bool = False
    rate_hz: int = RATE_HZ
    chosen: Format | None = None
    """The session's format for this direction, which overrides `is_pcm16`."""


Save: TypeAlias = Callable[[Media, str, Coding], Any]
"""A callback for a media value: its kind, its text and the coding of samples; returns the replacement."""

_FIELDS: Final = {
    **dict.fromkeys(("audio", "audio_base64", "audio_data"), Media.SPEECH),
    **dict.fromkeys(
        ("ref_audio", "ref_audio_base64", "ref_audio_data", "tts_ref_audio", "tts_ref_audio_base64"),
        Media.VOICE,
    ),
    **dict.fromkeys(
        (
            *("video_frames", "frame_base64_list", "frames", "video_frame", "frame_base64", "frame", "image"),
            "image_url",
        ),
        Media.IMAGE,
    ),
}
SPEECH_DELTAS: Final = frozenset({"session.output_audio.delta", "response.output_audio.delta"})
"""Audio events whose field `delta` holds audio; in other events it holds text."""

_ITEM_AUDIO: Final = frozenset({"input_audio", "output_audio"})
"""Types of item parts that may have audio."""

_BASE64_FIELDS: Final = frozenset({"data", "base64", "audio_base64"})
"""Names of fields in an object that may hold base64."""


class Unreadable(Exception):
    """The frame holds no event."""


def read(frame: bytes) -> Any:
    """Return the event in a frame of either direction. Raises `Unreadable`."""
    try:
        check(frame)
        return msgspec.json.decode(frame)
    except (Refusal, InvalidUtf8, msgspec.DecodeError, RecursionError):
        raise Unreadable from None


def head(frame: bytes) -> str:
    """Return the beginning of a frame without an event, as text for JSON."""
    return frame[:HEAD_BYTES].decode(errors="backslashreplace")


def with_references(value: Any, save: Save, coding: Coding) -> Any:
    """Return `value` with each base64 value replaced by the result of `save`, called in the order of the
    event.

    `coding` is the default for samples whose event does not give one.
    """
    return _replace(value, None, coding, save)


def _replace(value: Any, media: Media | None, coding: Coding, save: Save) -> Any:
    if isinstance(value, dict):
        kind = value.get("type")
        if coding.chosen is not None and isinstance(kind, str) and kind in SPEECH_DELTAS:
            return value | {"delta": save(Media.SPEECH, str(value.get("delta")), coding)}
        if "format" in value:
            coding = replace(coding, is_pcm16=value["format"] == "pcm16")
        is_clip = value.get("type") == "audio" and "data" in value
        if is_clip and isinstance(rate_hz := value.get("sample_rate"), int) and 0 < rate_hz < 2**31:
            coding = replace(coding, rate_hz=rate_hz)
        inner = {"data": Media.VOICE} if is_clip else {}
        if isinstance(kind, str) and kind in _ITEM_AUDIO:
            inner = {"audio": Media.CLIP}
        return {
            key: _replace(item, inner.get(key) or _media(key, media), coding, save)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_replace(item, media, coding, save) for item in value]
    if isinstance(value, str) and value and media is not None:
        return save(media, value, coding)
    return value


def _media(key: str, outer: Media | None) -> Media | None:
    if key in _BASE64_FIELDS and outer is not None:
        return outer
    # At the root, `data` is the picture of the event `video_frame`.
    return Media.IMAGE if key == "data" else _FIELDS.get(key)
