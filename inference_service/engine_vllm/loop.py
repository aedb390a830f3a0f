"""A thread that runs an event loop, for objects that must live on one thread."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """An event loop on its own daemon thread, from creation to `stop`."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def post(self, act: Callable[[], object]) -> None:
        """Call `act` on the thread, after earlier posts; do nothing after `stop`."""
        try:
            self.loop.call_soon_threadsafe(act)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run `work` on the thread, wait for it, and return its result or raise its error. Raises
        `TimeoutError`.
        """
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def stop(self, timeout: float) -> None:
        """End the loop, and wait for the thread."""
        self.post(self.loop.stop)
        self._thread.join(timeout)
