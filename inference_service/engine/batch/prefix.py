"""The prefix cache: beginnings of contexts, found by their content, so that each is computed once."""

import hashlib
from collections.abc import Iterator

from inference_service.device.rows import Rows
from inference_service.engine.batch.kvcache import KVCache
from inference_service.engine.batch.pages import PAGE


class Prefix:
    """The rows of one slot from its first entry on, until the first one is dropped.

    A page's name is the hash of its rows (ids and names of media), of all pages before it, and of the
    tenant's salt. Its keys and values depend on the rows alone. The salt keeps tenants apart: a page that one
    tenant has published is found by no other, so neither counts of cached tokens nor the time of a prefill
    tell one tenant about the prompts of another. Pages that hold nothing but a prompt that the operator
    shares have names without the salt. The prefix ends before media without a name.
    """

    def __init__(self, cache: KVCache, slot: int, salt: bytes) -> None:
        self._cache = cache
        self._slot = slot
        self._salt = salt
        self._names: list[bytes] = []
        """Names of the full pages, in order."""
        self._published = 0
        """The number of these that are published."""
        self._rest = Rows.of_ids([])
        """The rows behind the full pages."""
        self._has_ended = False

    def find(self, rows: Rows) -> int:
        """Return how many of the next `rows` are cached: at most all but one."""
        if self._has_ended or not rows.has_content:
            return 0
        waiting = Rows.join([self._rest, rows])
        found = 0
        for page in _pages(waiting[: max(0, len(waiting) - 1)]):
            name = self._next(page)
            if not self._cache.adopt(self._slot, len(self._names), name):
                break
            self._names.append(name)
            found += 1
        if not found:
            return 0
        self._published = len(self._names)
        skipped = found * PAGE - (len(waiting) - len(rows))
        self._rest = Rows.of_ids([])
        return skipped

    def fed(self, rows: Rows) -> None:
        """Append rows that are in the slot now."""
        if self._has_ended or not rows.has_content:
            self._has_ended = True
            return
        waiting = Rows.join([self._rest, rows])
        for page in _pages(waiting):
            self._names.append(self._next(page))
        self._rest = waiting[len(waiting) // PAGE * PAGE :]

    def publish(self) -> None:
        """Publish all full pages so far."""
        names = self._names[self._published :]
        self._cache.publish(self._slot, self._published, names)
        self._published = len(self._names)

    def _next(self, page: bytes) -> bytes:
        name = _name(self._names[-1] if self._names else b"", page)
        return name if name in self._cache.shared else hashlib.sha256(self._salt + name).digest()


def shared_names(rows: Rows) -> list[bytes]:
    """Return names of the full pages of a prompt that all tenants share, for `KVCache.share`."""
    names: list[bytes] = []
    for page in _pages(rows):
        names.append(_name(names[-1] if names else b"", page))
    return names


def _name(before: bytes, page: bytes) -> bytes:
    return hashlib.sha256(before + page).digest()


def _pages(rows: Rows) -> Iterator[bytes]:
    """Yield the content of the full pages of `rows`."""
    for begin in range(0, len(rows) // PAGE * PAGE, PAGE):
        yield rows[begin : begin + PAGE].content
