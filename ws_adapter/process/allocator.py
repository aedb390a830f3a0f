"""Settings of the C library's allocator for the memory use of an adapter.

A unit needs a few buffers of 64 to 170 KB, which live for milliseconds. By default glibc maps each buffer of
more than 128 KB and unmaps it at once, and trims the end of its heap in the same way. The system then clears
and maps every page again, which costs more than the work on the buffer.
"""

import ctypes
import sys
from typing import Final

# mallopt(3)
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_LARGEST: Final = 32 * 2**20
"""The allocation size from which on freed memory returns to the system; the largest that glibc allows."""

_KEPT: Final = 256 * 2**20
"""The most unused bytes at the end of the heap."""


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for reuse; return False without glibc.

    Call this before starting threads. All threads then share one heap, so that each reuses the memory that
    another one frees.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    settings = ((_M_MMAP_THRESHOLD, _LARGEST), (_M_TRIM_THRESHOLD, _KEPT), (_M_ARENA_MAX, 1))
    return all(mallopt(option, value) == 1 for option, value in settings)
