"""`antiphon` on a clock that runs thirty times as fast: pace and timeouts alike."""

import asyncio
import selectors
import sys
import time

import antiphon.audio.pacing
from antiphon_command.command import main

HASTE = 30.0


class HastySelector(selectors.DefaultSelector):  # type: ignore[misc,valid-type]
    """Waits for a thirtieth of the time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return list(super().select(None if timeout is None else timeout / HASTE))


class HastyLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        super().__init__(HastySelector())

    def time(self) -> float:
        return time.monotonic() * HASTE


class HastyPolicy(asyncio.DefaultEventLoopPolicy):
    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return HastyLoop()


antiphon.audio.pacing.RealTime.now = lambda self: time.monotonic() * HASTE  # type: ignore[method-assign]
asyncio.set_event_loop_policy(HastyPolicy())
sys.exit(main())
