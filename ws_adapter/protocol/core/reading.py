"""Reading of frames that would block the event loop for too long, on another thread."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ws_adapter.protocol.core.machine import Action, Offload

T = TypeVar("T")


class Reading:
    """The reader of one session's frames, one at a time."""

    def __init__(self) -> None:
        self.held_bytes = 0
        """The bytes of the frame that another thread is reading."""

    def offload(
        self, size: int, read: Callable[[], T], then: Callable[[T, float], list[Action]]
    ) -> list[Action]:
        """Run `read`, which must not touch the session, in a thread; `then` gets its result and the time."""
        self.held_bytes = size
        return [Offload(lambda: partial(self._finish, read(), then))]

    def _finish(self, result: T, then: Callable[[T, float], list[Action]], now: float) -> list[Action]:
        self.held_bytes = 0
        return then(result, now)
