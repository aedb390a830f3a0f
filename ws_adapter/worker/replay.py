"""Replay of a journal: a new session at a worker repeats the units of a lost one."""

from collections.abc import Callable, Iterator

from antiphon.v1 import inference_service_pb2 as pb
from ws_adapter.worker.journal import Parts


class Replay:
    """The replay of recorded units at a worker, with at most `window` of them in flight."""

    def __init__(
        self,
        units: Iterator[Parts],
        count: int,
        window: int,
        write: Callable[[Parts], None],
        done: Callable[[bool], None],
    ) -> None:
        """`units` yields `count` units. `done` is called once: True at the end, False if a unit fails."""
        self.count = count
        self._units = units
        self._window = max(1, window)
        self._write = write
        self._done = done
        self._sent = 0
        self._closed = 0
        self._is_over = False

    def start(self) -> None:
        """Send the first units."""
        if self.count:
            self._go_on()
        else:
            self._end(True)

    def owns(self, unit: int) -> bool:
        """Return whether a unit number at the worker is that of a replayed unit."""
        return 0 < unit <= self.count

    def answered(self, answer: pb.GenerateResponse) -> None:
        """Record an answer to a replayed unit."""
        if answer.HasField("done") and answer.done.end == pb.UNIT_END_FAILED:
            self._end(False)
        if answer.HasField("finalized"):
            self._closed += 1
            if self._closed == self.count:
                self._end(True)
            else:
                self._go_on()

    def _go_on(self) -> None:
        while not self._is_over and self._sent < self.count and self._sent - self._closed < self._window:
            self._sent += 1
            self._write(next(self._units))

    def _end(self, is_complete: bool) -> None:
        if not self._is_over:
            self._is_over = True
            self._done(is_complete)
