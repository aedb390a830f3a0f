"""Detection of a video file's container from its first bytes, and of truncated files."""

from typing import Final

_MATROSKA: Final = b"\x1aE\xdf\xa3"
_MP4_BOXES: Final = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"})
_SEGMENT: Final = b"\x18\x53\x80\x67"
_MOST_BOXES: Final = 1 << 16


def format_of(data: bytes) -> str | None:
    """Return libavformat's name of the container: MP4 and MOV, or WebM and Matroska; None for others."""
    if data.startswith(_MATROSKA):
        return "matroska"
    if data[4:8] in _MP4_BOXES:
        return "mp4"
    return None


def is_cut_short(data: bytes) -> bool:
    """Return whether the container's top-level parts state more bytes than there are.

    A file that was recorded live states no size, so truncation cannot be detected.
    """
    return _segment_end(data) > len(data) if data.startswith(_MATROSKA) else _boxes_end(data) > len(data)


def _boxes_end(data: bytes) -> int:
    at = 0
    for _ in range(_MOST_BOXES):
        if at >= len(data):
            break
        size = int.from_bytes(data[at : at + 4], "big")
        if size == 1:
            size = int.from_bytes(data[at + 8 : at + 16], "big")
        if size == 0:  # to the end of the file
            return len(data)
        if size < 8:
            break
        at += size
    return at


def _segment_end(data: bytes) -> int:
    header_size, at = _vint(data, len(_MATROSKA))
    at += header_size
    if data[at : at + 4] != _SEGMENT:
        return 0
    size, begin = _vint(data, at + 4)
    is_unknown = size + 1 == 1 << 7 * (begin - at - 4)
    return 0 if is_unknown else begin + size


def _vint(data: bytes, at: int) -> tuple[int, int]:
    """Return the EBML number at an index, and the index after it."""
    first = data[at] if at < len(data) else 0x80
    length = 9 - first.bit_length()
    value = int.from_bytes(data[at : at + length], "big") & ((1 << 7 * length) - 1)
    return value, at + length
