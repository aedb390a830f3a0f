"""The VAD thread, which scores the sound of many sessions in one batch, off the event loop."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from ws_adapter.detection.scorer import Scorer
from ws_adapter.protocol.core.speech import RATE_HZ, WINDOW
from ws_adapter.protocol.wire.codec import Samples

GATHER_S: Final = 0.02
"""The seconds that sound waits, so that one batch has the sound of many sessions, which saves CPU."""

MOST_AT_ONCE: Final = 96
"""The target size of a batch in windows; the data of a larger one does not fit into the CPU cache
(Silero)."""

MOST_OF_ONE: Final = 16
"""The most windows of one session in a batch, half a second, so that a fast sender delays no other
session."""

MOST_WAITING: Final = 120 * RATE_HZ // WINDOW
"""The most windows of one session that may wait, two minutes."""

_THREAD: Final = "detector"

Found: TypeAlias = Samples | Exception
"""Scores, or the exception that replaces them."""


class Listener:
    """The speech detection of one session, from `Detector.listen` to `close`; for the event loop's thread.

    With more than `MOST_WAITING` waiting windows it skips the oldest. A skipped window gets the score of the
    window before it, so that speech neither starts nor stops there and later windows keep their positions.
    """

    def __init__(
        self,
        memory: Any,
        wake: "Callable[[Listener], None]",
        tell: Callable[[Sequence[float]], None],
        failed: Callable[[], None],
    ) -> None:
        self.memory = memory
        self.is_queued = False
        """Whether it is queued for a batch."""
        self._wake = wake
        self._tell = tell
        self._failed = failed
        self._given: deque[Samples] = deque()
        self._count = 0
        """The number of waiting samples."""
        self._passed = 0
        """Windows skipped since the last batch was taken."""
        self._passed_before = 0
        """Windows skipped before the batch that is being scored."""
        self._last = 0.0
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """The number of complete waiting windows."""
        return self._count // WINDOW

    @property
    def held_bytes(self) -> int:
        """Bytes of sound that waits to be scored."""
        return self._count * 4

    def give(self, samples: Samples) -> None:
        """Queue sound, float32 at 16 kHz of any length; the caller must not change the array afterwards."""
        if self._is_closed or not samples.size:
            return
        self._given.append(samples)
        self._count += samples.size
        if (over := self.waiting - MOST_WAITING) > 0:
            self._take(over * WINDOW)
            self._passed += over
        if self.waiting and not self.is_queued:
            self._wake(self)

    def next_windows(self) -> Samples:
        """Remove and return the oldest waiting windows, float32 [windows, `WINDOW`], at most
        `MOST_OF_ONE`."""
        count = min(self.waiting, MOST_OF_ONE)
        self._passed_before, self._passed = self._passed, 0
        return self._take(count * WINDOW).reshape(count, WINDOW)

    def found(self, found: Found) -> None:
        """Report the scores of the windows that were last taken, or their failure."""
        if self._is_closed:
            return
        try:
            if isinstance(found, Exception):
                raise found
            scores = [self._last] * self._passed_before + found.tolist()
            self._last = scores[-1]
            self._tell(scores)
        except Exception:
            self._failed()

    def close(self) -> None:
        """Report no further scores, not even those of sound that is being scored."""
        self._is_closed = True
        self._given.clear()
        self._count = 0

    def _take(self, count: int) -> Samples:
        """Remove and return the oldest `count` samples."""
        self._count -= count
        pieces = []
        while count:
            piece = self._given.popleft()
            if piece.size > count:
                self._given.appendleft(piece[count:])
                piece = piece[:count]
            pieces.append(piece)
            count -= piece.size
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


_BatchEntry: TypeAlias = tuple[Listener, Samples]


class Detector:
    """The listeners of a process, and the VAD thread that scores for them."""

    def __init__(self, scorer: Scorer[Any]) -> None:
        self.name: Final = scorer.name
        self._scorer = scorer
        self._thread = ThreadPoolExecutor(1, _THREAD, _name_thread)
        self._queue: deque[Listener] = deque()
        """Listeners with complete windows, served round-robin."""
        self._is_awake = False
        """Whether a batch is being scored or scheduled."""
        self._is_closed = False

    def listen(self, tell: Callable[[Sequence[float]], None], failed: Callable[[], None]) -> Listener:
        """Start speech detection for a session; `tell` receives the scores of its sound, in order.

        `failed` is called from the handler of an exception that scoring this session raised; other sessions
        are not affected. Both callbacks run on the event loop.
        """
        return Listener(self._scorer.begin(), self._wake, tell, failed)

    def close(self) -> None:
        """Stop scoring without waiting for the thread."""
        self._is_closed = True
        self._queue.clear()
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _wake(self, listener: Listener) -> None:
        if self._is_closed:
            return
        listener.is_queued = True
        self._queue.append(listener)
        if not self._is_awake:
            self._is_awake = True
            asyncio.get_running_loop().call_later(GATHER_S, self._begin)

    def _begin(self) -> None:
        """Hand the next batch to the thread."""
        batch = self._next_batch()
        if batch:
            scoring = asyncio.get_running_loop().run_in_executor(self._thread, self._score, batch)
            scoring.add_done_callback(partial(self._end, batch))
        else:
            self._is_awake = False

    def _next_batch(self) -> list[_BatchEntry]:
        batch: list[_BatchEntry] = []
        room = MOST_AT_ONCE
        for _ in range(len(self._queue)):
            if room <= 0:
                break
            listener = self._queue.popleft()
            if listener.waiting:
                batch.append((listener, listener.next_windows()))
                room -= batch[-1][1].shape[0]
            listener.is_queued = listener.waiting > 0
            if listener.is_queued:
                self._queue.append(listener)
        return batch

    def _end(self, batch: list[_BatchEntry], scoring: "asyncio.Future[list[Found]]") -> None:
        if scoring.cancelled():
            return
        for (listener, _), found in zip(batch, scoring.result(), strict=True):
            listener.found(found)
        if sum(listener.waiting for listener in self._queue) >= MOST_AT_ONCE:
            self._begin()
        else:
            asyncio.get_running_loop().call_later(GATHER_S, self._begin)

    def _score(self, batch: list[_BatchEntry]) -> list[Found]:
        """Score all sessions of the batch, on the VAD thread. After a failure score each session alone, so
        that the fault affects only its session."""
        try:
            return list(self._scorer.score([one.memory for one, _ in batch], [sound for _, sound in batch]))
        except Exception:
            return [self._score_alone(*entry) for entry in batch]

    def _score_alone(self, listener: Listener, sound: Samples) -> Found:
        try:
            return self._scorer.score([listener.memory], [sound])[0]
        except Exception as error:
            return error


def _name_thread() -> None:
    """Set the name of the thread, so that its CPU time can be distinguished from that of the event loop."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(_THREAD)
