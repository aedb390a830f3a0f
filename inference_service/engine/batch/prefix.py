"""What stands at the beginning of a context, told by its content, so that nobody computes it again."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from inference_service.engine.batch.kvcache import KVCache
from inference_service.engine.batch.pages import PAGE


class Prefix:
    """The rows of one slot from its first entry on, as long as none is forgotten.

    A page goes by the hash of its rows' embeddings and of all pages before: keys and values depend on nothing
    else. What was asked for by the same content in another session is taken over instead of being fed.
    """

    def __init__(self, cache: KVCache, slot: int) -> None:
        self._cache = cache
        self._slot = slot
        self._names: list[bytes] = []
        """Of the full pages, in order."""
        self._published = 0
        """How many of these are known."""
        self._rest: list[Tensor] = []
        """Embeddings of the rows behind the full pages."""

    def find(self, rows: Tensor) -> int:
        """How many of `rows` [n, hidden], which come next, need not be fed: all of them but one at most."""
        waiting = torch.cat([*self._rest, rows])
        found = 0
        for page in _pages(waiting[:-1]):
            name = self._next(page)
            if not self._cache.adopt(self._slot, len(self._names), name):
                break
            self._names.append(name)
            found += 1
        if not found:
            return 0
        self._published = len(self._names)
        skipped = found * PAGE - (len(waiting) - len(rows))
        self._rest = []
        return skipped

    def fed(self, rows: Tensor) -> None:
        """Rows [n, hidden] are in the slot, behind those before."""
        waiting = torch.cat([*self._rest, rows])
        for page in _pages(waiting):
            self._names.append(self._next(page))
        self._rest = [waiting[len(waiting) // PAGE * PAGE :].clone()]

    def publish(self) -> None:
        """All full pages so far may be found by others."""
        for page in range(self._published, len(self._names)):
            self._cache.publish(self._slot, page, self._names[page])
        self._published = len(self._names)

    def _next(self, page: bytes) -> bytes:
        before = self._names[-1] if self._names else b""
        return hashlib.sha256(before + page).digest()


def _pages(rows: Tensor) -> Iterator[bytes]:
    """What full pages of `rows` [n, hidden] hold."""
    full = rows[: len(rows) // PAGE * PAGE].detach().cpu().contiguous()
    for page in full.split(PAGE) if len(full) else ():
        yield page.view(torch.uint8).numpy().tobytes()
