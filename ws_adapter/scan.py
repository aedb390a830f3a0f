"""What can be said of a frame without parsing it: how much work a parser would have with it.

A parser makes an object of every item, by the million thirty times as large as their text, and four bytes of
every character beyond ASCII. It holds the interpreter meanwhile, on whatever thread it runs, so a frame made
of such would stop every session for seconds: it is counted first, in one pass over its bytes.
"""

import re
from typing import Final

import numpy as np

from ws_adapter.dialects.errors import ErrorCode, InvalidUtf8, Refusal

MAX_ITEMS: Final = 8_192
"""Most objects, lists and commas in an event, what stands within strings aside. The longest chat has five
thousand: 256 messages of four pictures each."""

MAX_ESCAPES: Final = 2**18
MAX_WIDE_BYTES: Final = 2**20
"""Most bytes beyond ASCII. That is 350,000 Chinese characters, more than any context holds; audio and
pictures have none."""

_MAX_STRINGS: Final = 2 * MAX_ITEMS + 1
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_MARKS: Final = (b",", b"[", b"{")
_COMMA, _BRACE, _TO_BRACE, _ESCAPE, _WIDE = map(np.uint8, (0x2C, 0x7B, 0x20, 0x5C, 0x80))
_STEP: Final = 2**16
"""Fits into the processor's cache with what is computed of it."""


def check(frame: bytes) -> None:
    """Raises `InvalidUtf8`, or `Refusal` for a frame that would take too long to parse."""
    if len(frame) > MAX_ITEMS:
        fault = _excess(frame)
        if fault:
            raise Refusal(ErrorCode.INVALID_PAYLOAD, f"an event has at most {fault}, got more")
    if frame.isascii():
        return
    try:
        frame.decode()
    except UnicodeDecodeError:
        raise InvalidUtf8 from None


def _excess(frame: bytes) -> str:
    """What there is too much of, empty if nothing."""
    octets = np.frombuffer(frame, np.uint8)
    marks = escapes = wide = 0
    for start in range(0, len(octets), _STEP):
        part = octets[start : start + _STEP]
        marks += int(np.count_nonzero(part == _COMMA))
        # `[` and `{` differ in one bit.
        marks += int(np.count_nonzero(part | _TO_BRACE == _BRACE))
        escapes += int(np.count_nonzero(part == _ESCAPE))
        wide += int(np.count_nonzero(part >= _WIDE))
    if escapes > MAX_ESCAPES:
        return f"{MAX_ESCAPES} escapes"
    if wide > MAX_WIDE_BYTES:
        return f"{MAX_WIDE_BYTES} bytes beyond ASCII"
    if marks > MAX_ITEMS and not _is_text(frame):
        return f"{MAX_ITEMS} items"
    return ""


def _is_text(frame: bytes) -> bool:
    """Whether it has no more items than it may once its strings are taken out."""
    rest, strings = _STRING.subn(b"", frame, count=_MAX_STRINGS + 1)
    return strings <= _MAX_STRINGS and sum(map(rest.count, _MARKS)) <= MAX_ITEMS
