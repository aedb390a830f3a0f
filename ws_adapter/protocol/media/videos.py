"""Video files in events: their container is recognised by the first bytes, and they are passed on unchanged.

No video is decoded here, the worker does that.
"""

from typing import Final

from ws_adapter.protocol.wire.codec import decode_base64
from ws_adapter.protocol.wire.errors import invalid, missing

_MATROSKA: Final = b"\x1aE\xdf\xa3"
"""The signature of Matroska and WebM."""
_BOXES: Final = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"})
"""Kinds of the first box of MP4 and MOV."""


def read_video(text: str, path: str) -> bytes:
    """Return the video file in a text of base64, perhaps with `data:...,` before it. Raises `Refusal`."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    if not text:
        raise missing(path, "base64 of a video")
    data = decode_base64(text, path)
    if not data.startswith(_MATROSKA) and data[4:8] not in _BOXES:
        raise invalid(path, "expected an MP4, MOV, WebM or Matroska file, got something else")
    return data
