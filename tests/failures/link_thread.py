"""A link that runs in a thread of its own, for tests that have no event loop."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.failures.link import Link
from tests.support.patience import PATIENCE_S


class LinkThread:
    def __init__(self, link: Link, loop: asyncio.AbstractEventLoop) -> None:
        self.address = link.address
        self._link = link
        self._loop = loop

    def use(self, target: str | None) -> None:
        self._loop.call_soon_threadsafe(setattr, self._link, "target", target)

    def cut(self) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (self._link.cut(), done.set()))
        assert done.wait(PATIENCE_S)


@contextmanager
def link_in_thread(target: str | None) -> Iterator[LinkThread]:
    """A link, taken away on leaving the block."""
    loop, link = asyncio.new_event_loop(), Link(target)
    thread = threading.Thread(target=loop.run_forever, name="link")
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(link.start(), loop).result(PATIENCE_S)
        yield LinkThread(link, loop)
    finally:
        try:
            asyncio.run_coroutine_threadsafe(link.stop(), loop).result(PATIENCE_S)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(PATIENCE_S)
            loop.close()
