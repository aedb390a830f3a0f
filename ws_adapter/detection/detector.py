"""The VAD thread: scores the sound of many sessions at a time, beside the event loop."""

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
"""How long sound waits for that of other sessions: much at once costs less."""

MOST_AT_ONCE: Final = 96
"""Windows from which on no more are taken at once; with Silero more of them would leave the cache."""

MOST_OF_ONE: Final = 16
"""Windows of one session among them, half a second, so that whoever sends much keeps nobody waiting."""

MOST_WAITING: Final = 120 * RATE_HZ // WINDOW
"""Windows of one session that may wait, two minutes."""

_THREAD: Final = "detector"

Found: TypeAlias = Samples | Exception
"""Scores, or why there are none."""


class Listener:
    """Listens to one session, from `Detector.listen` to `close`; for the event loop's thread.

    Where more than `MOST_WAITING` windows wait it passes over the oldest: they get the score of the last one
    before them, so that nothing starts or stops there, and those that follow keep their places.
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
        """Whether it waits for a turn."""
        self._wake = wake
        self._tell = tell
        self._failed = failed
        self._given: deque[Samples] = deque()
        self._count = 0
        """Samples in it."""
        self._passed = 0
        """Windows that were passed over since the last turn was taken."""
        self._passed_before = 0
        """And before that turn."""
        self._last = 0.0
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Whole windows that wait."""
        return self._count // WINDOW

    @property
    def held_bytes(self) -> int:
        """Bytes of sound that waits to be scored."""
        return self._count * 4

    def give(self, samples: Samples) -> None:
        """More sound, float32 at 16 kHz of any length, which nobody changes any more."""
        if self._is_closed or not samples.size:
            return
        self._given.append(samples)
        self._count += samples.size
        if (over := self.waiting - MOST_WAITING) > 0:
            self._take(over * WINDOW)
            self._passed += over
        if self.waiting and not self.is_queued:
            self._wake(self)

    def turn(self) -> Samples:
        """Return the oldest of what waits, float32 [windows, `WINDOW`]."""
        count = min(self.waiting, MOST_OF_ONE)
        self._passed_before, self._passed = self._passed, 0
        return self._take(count * WINDOW).reshape(count, WINDOW)

    def found(self, found: Found) -> None:
        """Take the findings of one turn."""
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
        """Report nothing more, including sound that is being scored."""
        self._is_closed = True
        self._given.clear()
        self._count = 0

    def _take(self, count: int) -> Samples:
        """Return the oldest samples, so many."""
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


_Turn: TypeAlias = tuple[Listener, Samples]


class Detector:
    """The listeners of a process, and the thread that scores for them."""

    def __init__(self, scorer: Scorer[Any]) -> None:
        self.name: Final = scorer.name
        self._scorer = scorer
        self._thread = ThreadPoolExecutor(1, _THREAD, _name_thread)
        self._queue: deque[Listener] = deque()
        """Those of whom whole windows wait, in turn."""
        self._is_awake = False
        """Whether something is scored, or will be."""
        self._is_closed = False

    def listen(self, tell: Callable[[Sequence[float]], None], failed: Callable[[], None]) -> Listener:
        """Begin to listen to a session: `tell` gets the scores of what it gives, in order.

        `failed` is called while the exception is handled that went between; nobody else notices. Both are
        called on the event loop.
        """
        return Listener(self._scorer.begin(), self._wake, tell, failed)

    def close(self) -> None:
        """Score nothing more, and wait for nothing."""
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
        """Have the thread score what is next."""
        turns = self._turns()
        if turns:
            scoring = asyncio.get_running_loop().run_in_executor(self._thread, self._score, turns)
            scoring.add_done_callback(partial(self._end, turns))
        else:
            self._is_awake = False

    def _turns(self) -> list[_Turn]:
        turns: list[_Turn] = []
        room = MOST_AT_ONCE
        for _ in range(len(self._queue)):
            if room <= 0:
                break
            listener = self._queue.popleft()
            if listener.waiting:
                turns.append((listener, listener.turn()))
                room -= turns[-1][1].shape[0]
            listener.is_queued = listener.waiting > 0
            if listener.is_queued:
                self._queue.append(listener)
        return turns

    def _end(self, turns: list[_Turn], scoring: "asyncio.Future[list[Found]]") -> None:
        if scoring.cancelled():
            return
        for (listener, _), found in zip(turns, scoring.result(), strict=True):
            listener.found(found)
        if sum(listener.waiting for listener in self._queue) >= MOST_AT_ONCE:
            self._begin()
        else:
            asyncio.get_running_loop().call_later(GATHER_S, self._begin)

    def _score(self, turns: list[_Turn]) -> list[Found]:
        """Score on the thread, all sessions at once; after a failure each alone, so that a fault stays
        with its session."""
        try:
            return list(self._scorer.score([one.memory for one, _ in turns], [sound for _, sound in turns]))
        except Exception:
            return [self._score_alone(*turn) for turn in turns]

    def _score_alone(self, listener: Listener, sound: Samples) -> Found:
        try:
            return self._scorer.score([listener.memory], [sound])[0]
        except Exception as error:
            return error


def _name_thread() -> None:
    """Let the system know it by its name, so that its processor time can be told from the event loop's."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(_THREAD)
