"""An event loop in a thread of its own, for calls from other threads."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from antiphon.errors import CallTimeout

_MARGIN_S: Final = 10.0
"""The extra seconds that a waiting thread allows, since the loop enforces the deadline itself."""

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="antiphon-sync", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine on the loop and return its result.

        Raises the coroutine's exceptions, `CallTimeout` at the deadline, and RuntimeError when called in a
        coroutine.
        """
        try:
            refuse_coroutines()
            if not self._thread.is_alive():
                raise RuntimeError("the client is closed")
        except RuntimeError:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(_within(coroutine, timeout_s), self._loop)
        try:
            return future.result(timeout_s + _MARGIN_S)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise CallTimeout(
                "The thread of antiphon.sync does not respond. Does a callback block it?"
            ) from None
        except BaseException:  # such as Ctrl-C
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread; the remaining tasks are cancelled."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_MARGIN_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


async def _within(coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """Enforce the deadline on the loop, between two steps of the coroutine, so that no result is lost."""
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            return await coroutine
    except TimeoutError:
        if not deadline.expired():
            raise
        raise CallTimeout(f"The call took longer than its deadline of {timeout_s:g} s.") from None


def checked(timeout_s: float) -> float:
    if not 0.0 < timeout_s < float("inf"):
        raise ValueError(f"`timeout_s` is a number of seconds above 0, not {timeout_s!r}.")
    return timeout_s


def refuse_coroutines() -> None:
    """Raise RuntimeError in a thread whose event loop the call would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "The blocking client cannot be used where an event loop is running: await antiphon.connect(...), "
        "or call antiphon.sync in another thread with asyncio.to_thread(...)."
    )
