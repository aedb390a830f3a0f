"""Settings of the C library's allocator for the memory use of an adapter.

A unit needs a handful of buffers of 64 to 170 KB, which live for milliseconds. glibc by default asks the
system for each of more than 128 KB and gives it back at once, and does the same with the end of its heap;
every page is then cleared and mapped anew, which costs more than what is done with it.
"""

import ctypes
import sys
from typing import Final

# mallopt(3)
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

_LARGEST: Final = 32 * 2**20
"""The allocation size from which on freed memory goes back to the system; glibc allows no more."""

_KEPT: Final = 256 * 2**20
"""The bytes that may lie unused at the end of the heap."""


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for its next use; False without glibc.

    Call it before threads are started: all of them share one heap, so that one thread reuses what another
    frees.
    """
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    settings = ((_M_MMAP_THRESHOLD, _LARGEST), (_M_TRIM_THRESHOLD, _KEPT), (_M_ARENA_MAX, 1))
    return all(mallopt(option, value) == 1 for option, value in settings)
