"""Redaction of client text in the log: its length and a digest, never the text."""

import hashlib
import traceback
from typing import Final

_DIGITS: Final = 12


def outline(text: str | bytes) -> str:
    """Length in bytes and the first digits of the SHA-256: equal texts are told apart from others."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:_DIGITS]}"


def where(error: BaseException) -> str:
    """Return the sort of an error and the lines it came through, without its message, which may quote a
    client."""
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
