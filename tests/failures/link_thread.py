"""A link that runs in a thread of its own, for tests that have no event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from tests.failures.link import Link
from tests.support.patience import PATIENCE_S


class LinkThread:
    def __init__(self, target: str | None) -> None:
        self._link = Link(target)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link")
        self._thread.start()

    @property
    def address(self) -> str:
        return self._link.address

    def start(self) -> None:
        self._do(self._link.start())

    def stop(self) -> None:
        try:
            self._do(self._link.stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(PATIENCE_S)
            self._loop.close()

    def use(self, target: str | None) -> None:
        self._call(lambda: setattr(self._link, "target", target))

    def cut(self) -> None:
        self._call(self._link.cut)

    def _call(self, act: Callable[[], object]) -> None:
        async def do() -> None:
            act()

        self._do(do())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)


@contextmanager
def link_in_thread(target: str | None) -> Iterator[LinkThread]:
    link = LinkThread(target)
    try:
        link.start()
        yield link
    finally:
        link.stop()
