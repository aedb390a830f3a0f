"""Page allocation of a KV cache: owners of pages, and idle pages of the prefix cache.

It handles page numbers and names only; `KVCache` holds the rows.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice

from inference_service.device import paged

PAGE = paged.PAGE
"""Rows of a page."""
_STRETCH = b"\1" * 8
"""A run of free pages, in which a context preferably begins."""
_EVICTED, _MOST_EVICTED = 8, 32
"""Share of the idle pages that is evicted at a time, as a divisor, and its limit in pages. Pages are evicted
together so that free pages are contiguous.
"""
STALE_S = 600.0
"""Seconds after which an unused idle page is stale: it is evicted first, whichever tenant owns it."""


def slot_pages(capacity: int) -> int:
    """Return the number of pages that `capacity` rows take at most, wherever in the first page they begin."""
    return -(-(capacity + PAGE - 1) // PAGE)


def slot_rows(capacity: int) -> int:
    """Return the number of rows in these pages."""
    return slot_pages(capacity) * PAGE


class PagePool:
    """Reference-counted pages: used ones belong to a context, idle ones hold a prefix, the others are free.

    Only full pages that are no longer written have a name, which identifies their rows and all earlier ones.
    Several contexts may refer to them, and they keep the name until they are evicted.

    A page that is in use is never evicted. Of idle pages, stale ones go first. Then a tenant that needs a
    page loses its own idle pages, and those of other tenants only once it has none left, so that one tenant
    can infer as little as possible about another. Within each group the least recently used page goes first.
    """

    def __init__(self, pages: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a pool of free pages; `clock` gives monotonic seconds."""
        self.pages = pages
        self._clock = clock
        self._references = [0] * pages
        self._free = bytearray(b"\1") * pages
        self._names: dict[int, bytes] = {}
        self._known: dict[bytes, int] = {}
        self._owners: dict[int, bytes] = {}
        """The tenant that published each named page."""
        self._idle: OrderedDict[int, float] = OrderedDict()
        """Idle pages, each with the time at which it became idle."""
        self._idle_of: dict[bytes, OrderedDict[int, None]] = {}
        """Idle pages by owner."""

    @property
    def used(self) -> int:
        """Pages that contexts refer to."""
        return self.pages - self.idle - self.free

    @property
    def idle(self) -> int:
        """Pages that hold a prefix without any context."""
        return len(self._idle)

    @property
    def free(self) -> int:
        """Free pages."""
        return self._free.count(1)

    def is_private(self, page: int) -> bool:
        """Return whether only one context uses the page, so that it may write to it."""
        return self._references[page] == 1 and page not in self._names

    def take(self, near: int, owner: bytes = b"") -> tuple[int, list[int]]:
        """Return a page for a context of `owner`, preferably `near`, and the pages evicted for it.

        Raises `MemoryError` if all are in use.
        """
        evicted: list[int] = []
        if not self._free.count(1):
            evicted = self._evict(owner)
        page = self._find_free(near)
        if page < 0:
            raise MemoryError(f"all {self.pages} pages of the KV cache are in use")
        self._free[page] = 0
        self._references[page] = 1
        return page, evicted

    def find(self, name: bytes) -> int | None:
        """Return the page of that name with one more reference; None if there is none."""
        page = self._known.get(name)
        if page is not None:
            self._references[page] += 1
            self._wake(page)
        return page

    def publish(self, page: int, name: bytes, owner: bytes = b"") -> None:
        """Publish a page under a name, unless another page has it or the page has one."""
        if name not in self._known and page not in self._names:
            self._known[name] = page
            self._names[page] = name
            self._owners[page] = owner

    def release(self, pages: Iterable[int]) -> list[int]:
        """Release one reference to each page; return those that are free now.

        Of pages that become idle, the last one counts as the most recently used.
        """
        freed = []
        for page in pages:
            self._references[page] -= 1
            if self._references[page]:
                continue
            if page in self._names:
                self._idle[page] = self._clock()
                self._idle_of.setdefault(self._owners[page], OrderedDict())[page] = None
            else:
                self._free[page] = 1
                freed.append(page)
        return freed

    def _find_free(self, near: int) -> int:
        if near < self.pages and self._free[near]:
            return near
        for wanted in (_STRETCH, b"\1"):
            for begin in (near, 0):
                page = self._free.find(wanted, begin)
                if page >= 0:
                    return page
        return -1

    def forget(self, owner: bytes) -> list[int]:
        """Evict all idle pages of a tenant; return them."""
        evicted = list(self._idle_of.get(owner, ()))
        for page in evicted:
            self._drop(page)
        return evicted

    def _evict(self, owner: bytes) -> list[int]:
        """Evict idle pages for `owner`; return them."""
        most = min(_MOST_EVICTED, max(1, len(self._idle) // _EVICTED))
        fresh_since = self._clock() - STALE_S
        evicted = [page for page, since in islice(self._idle.items(), most) if since <= fresh_since]
        if not evicted:
            evicted = list(islice(self._idle_of.get(owner, self._idle), most))
        for page in evicted:
            self._drop(page)
        return evicted

    def _drop(self, page: int) -> None:
        """Free an idle page and forget its name."""
        self._wake(page)
        del self._known[self._names.pop(page)]
        del self._owners[page]
        self._free[page] = 1

    def _wake(self, page: int) -> None:
        """Remove a page from the idle ones."""
        if page not in self._idle:
            return
        del self._idle[page]
        pages = self._idle_of[self._owners[page]]
        del pages[page]
        if not pages:
            del self._idle_of[self._owners[page]]
