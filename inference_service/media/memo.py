"""A cache of expensive results, keyed by the hash of their input."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")

PROMPTS_KNOWN = 32
"""Limit of prompts whose ids a model caches."""
VOICES_KNOWN = 8
"""Limit of reference voices whose model input a model caches, 3.5 MB each for the longest."""


def digest(*parts: bytes | str | bool | NDArray[np.float32]) -> bytes:
    """Return the SHA-256 of all parts, each with its length before it."""
    total = hashlib.sha256()
    for part in parts:
        match part:
            case str():
                data: bytes = part.encode("utf-8", "surrogatepass")
            case bool():
                data = bytes([part])
            case bytes():
                data = part
            case _:
                data = part.tobytes()
        total.update(len(data).to_bytes(8, "little"))
        total.update(data)
    return total.digest()


class Memo(Generic[T]):
    """The last `most` results. Any thread may call it; a caller waits for a result that is being computed."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: OrderedDict[bytes, Future[T]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Return the number of kept results."""
        return len(self._known)

    def get(self, key: bytes, make: Callable[[], T]) -> T:
        """Return the cached result for this key, or that of `make`; an error is not cached."""
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
            else:
                mine: Future[T] = Future()
                self._known[key] = mine
                while len(self._known) > self._most:
                    self._known.popitem(last=False)
        if known is not None:
            return known.result()
        try:
            result = make()
        except BaseException as error:
            with self._lock:
                if self._known.get(key) is mine:
                    del self._known[key]
            mine.set_exception(error)
            raise
        mine.set_result(result)
        return result
