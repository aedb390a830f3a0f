"""A clock that a test can advance, so that deadlines of the product expire at once."""

import time

import pytest


class Passing:
    """`passing(30.0)` advances the clock of this process and of its event loop by 30 seconds.

    Whatever was due within them happens next. Who waits on another thread, or has bound the clock before,
    does not notice. The test itself may wait for nothing meanwhile: its own patience would end too.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._ahead_s = 0.0
        now = time.monotonic
        patch.setattr(time, "monotonic", lambda: now() + self._ahead_s)

    def __call__(self, seconds: float) -> None:
        self._ahead_s += seconds
