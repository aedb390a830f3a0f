"""Owners of the pages of a KV cache, and pages that hold a prefix for later.

Plain numbers and names: the rows of the pages are elsewhere.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice

from inference_service.device import paged

PAGE = paged.PAGE
"""Rows of a page."""
_STRETCH = b"\1" * 8
"""Free pages in a row that a context begins in, where there are any."""
_EVICTED, _MOST_EVICTED = 8, 32
"""One part in so many of the idle pages is evicted at a time, but no more pages than that: what is free then
lies together."""
STALE_S = 600.0
"""Idle pages that nobody has found for so long are evicted first, whichever tenant they belong to."""


def slot_pages(capacity: int) -> int:
    """Return the pages that hold so many rows, wherever in the first page they begin."""
    return -(-(capacity + PAGE - 1) // PAGE)


def slot_rows(capacity: int) -> int:
    """Return rows of these pages."""
    return slot_pages(capacity) * PAGE


class PagePool:
    """Pages in use are referred to by at least one context, idle ones hold a known prefix, the rest is free.

    Only full pages that nobody writes to any more are known by a name, which stands for their rows and all
    rows before these. They may be referred to by several contexts, and stay known until they are evicted.

    A page that is in use is never evicted. Of idle pages, stale ones go first. Then a tenant that needs a
    page loses its own idle pages, and those of other tenants only once it has none left, so that one tenant
    sees as little as possible of the work of another. Within each group the least recently used page goes
    first.
    """

    def __init__(self, pages: int, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` gives monotonic seconds."""
        self.pages = pages
        self._clock = clock
        self._references = [0] * pages
        self._free = bytearray(b"\1") * pages
        self._names: dict[int, bytes] = {}
        self._known: dict[bytes, int] = {}
        self._owners: dict[int, bytes] = {}
        """The tenant that published each named page."""
        self._idle: OrderedDict[int, float] = OrderedDict()
        """Idle pages, each with the time since when."""
        self._idle_of: dict[bytes, OrderedDict[int, None]] = {}
        """The same pages by their owners."""

    @property
    def used(self) -> int:
        """How many pages contexts refer to."""
        return self.pages - self.idle - self.free

    @property
    def idle(self) -> int:
        """How many pages hold a known prefix that no context refers to."""
        return len(self._idle)

    @property
    def free(self) -> int:
        """How many pages hold nothing."""
        return self._free.count(1)

    def is_private(self, page: int) -> bool:
        """Return whether its one context may write to it."""
        return self._references[page] == 1 and page not in self._names

    def take(self, near: int, owner: bytes = b"") -> tuple[int, list[int]]:
        """Return a page for one context of `owner`, `near` itself if it is free; and pages evicted for that.

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
        """Return the page known by that name, with one more reference; None if there is none."""
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
        """Release one reference to each page; return those that are free now. Of idle ones the last is the
        newest."""
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
        """Make idle pages free for `owner`; return them."""
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
        """Take a page out of the idle ones."""
        if page not in self._idle:
            return
        del self._idle[page]
        pages = self._idle_of[self._owners[page]]
        del pages[page]
        if not pages:
            del self._idle_of[self._owners[page]]
