"""Cost of a frame for a parser, counted without parsing it.

A parser makes an object of every item, which can take thirty times the memory of its text, and four bytes of
every character beyond ASCII. On any thread it holds the GIL meanwhile, so a frame with millions of items
would stop every session for seconds. Therefore items are counted first, in one pass over the bytes.
"""

import re
from typing import Final

import numpy as np

from ws_adapter.protocol.wire.errors import ErrorCode, Refusal

MAX_ITEMS: Final = 8_192
"""The most objects, lists and commas in an event, outside of strings. The longest chat has five thousand:
256 messages of four pictures each."""

MAX_ESCAPES: Final = 2**18
MAX_WIDE_BYTES: Final = 2**20
"""The most bytes beyond ASCII: 350,000 Chinese characters, more than any context holds. Audio and pictures
have no such bytes."""

DEEPEST: Final = 512
"""The deepest nesting of a frame with too many items for which the error names the items. Deeper nesting,
which parsers refuse, is reported as invalid JSON."""

_MAX_STRINGS: Final = 2 * MAX_ITEMS + 1
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_MARKS: Final = (b",", b"[", b"{")
_COMMA, _BRACE, _END, _TO_BRACE, _ESCAPE, _WIDE = map(np.uint8, (0x2C, 0x7B, 0x7D, 0x20, 0x5C, 0x80))
_STEP: Final = 2**16
"""The bytes per step, which fit into the CPU cache with their intermediate results."""


def count(frame: bytes) -> None:
    """Raise `Refusal` if a frame has too many items, escapes or bytes beyond ASCII. A frame of at most
    `MAX_ITEMS` bytes needs no check."""
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
        raise _excess(f"{MAX_ESCAPES} escapes")
    if wide > MAX_WIDE_BYTES:
        raise _excess(f"{MAX_WIDE_BYTES} bytes beyond ASCII")
    if marks > MAX_ITEMS:
        _count_items(frame)


def _count_items(frame: bytes) -> None:
    """Raise `Refusal` if a frame has too many strings, or too many items outside of its strings."""
    rest, strings = _STRING.subn(b"", frame, count=_MAX_STRINGS + 1)
    if strings <= _MAX_STRINGS and sum(map(rest.count, _MARKS)) <= MAX_ITEMS:
        return
    if _depth(rest[:_STEP]) > DEEPEST:
        raise Refusal(ErrorCode.INVALID_JSON, "the frame is not valid JSON")
    raise _excess(f"{MAX_ITEMS} items")


def _depth(text: bytes) -> int:
    """Return the nesting depth of lists and objects; `text` has no strings."""
    octets = np.frombuffer(text, np.uint8) | _TO_BRACE
    steps = (octets == _BRACE).astype(np.int32) - (octets == _END)
    return int(steps.cumsum().max(initial=0))


def _excess(most: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_PAYLOAD, f"an event has at most {most}, got more")
