"""Redaction of client text in the log: its length and a digest, never the text."""

import hashlib
import traceback
from typing import Final

_DIGITS: Final = 12


def outline(text: str | bytes) -> str:
    """Return the length in bytes and the first digits of the SHA-256, which distinguish texts."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    return f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()[:_DIGITS]}"


def where(error: BaseException) -> str:
    """Return the type of an error and its lines of code, without its message, which may quote a client."""
    return "".join(traceback.format_tb(error.__traceback__)) + type(error).__name__
