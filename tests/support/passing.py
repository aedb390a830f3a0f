"""Time that passes at once: deadlines of the product strike when a test says so."""

import time

import pytest


class Passing:
    """`passing(30.0)`: 30 seconds are over, on the clock of this process and of its event loop.

    Whatever was due within them happens next. Who waits on another thread, or has bound the clock before,
    does not notice. The test itself may wait for nothing meanwhile: its own patience would end too.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._ahead_s = 0.0
        now = time.monotonic
        patch.setattr(time, "monotonic", lambda: now() + self._ahead_s)

    def __call__(self, seconds: float) -> None:
        self._ahead_s += seconds
