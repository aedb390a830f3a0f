"""The media pool: threads that turn bytes, text and samples into arrays outside the engine's thread."""

import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum

logger = logging.getLogger(__name__)

Job = Callable[[], None]
PROGRESS_S = 2.0
"""Seconds between progress events for sessions that wait."""
STOP_S = 10.0
"""Limit in seconds of the wait for running jobs at the end: a thread in native code would abort the
process.
"""
_MOST_THREADS = 8
GIVES_WAY = 15
"""Increase of the `nice` value of threads that decode pictures or read long input. With few processors, ticks
would otherwise wait for other sessions' input. Linux has one `nice` value for each thread.
"""


class Priority(IntEnum):
    """Kinds of jobs; `_TAKES` has the kinds that each thread takes."""

    SOUND = 0
    """Sound of units: small, and soon due."""
    PICTURES = 1
    """Pictures of units, which are also soon due."""
    REST = 2
    """Prompts, voices, long recordings."""
    STEPS = 3
    """Jobs between two tokens of an answer; they wait for no other kind."""
    WORDS = 4
    """Sound that the recogniser also hears, whose process may be busy; it waits only for its own kind."""
    VIDEOS = 5
    """Turns with video files: each may take minutes, so they wait only for each other."""


_TAKES = {
    Priority.SOUND: (Priority.SOUND,),
    Priority.PICTURES: (Priority.PICTURES,),
    Priority.REST: (Priority.REST, Priority.PICTURES),
    Priority.STEPS: (Priority.STEPS,),
    Priority.WORDS: (Priority.WORDS,),
    Priority.VIDEOS: (Priority.VIDEOS,),
}
"""Priorities of the jobs that a thread takes, by the thread's own priority."""


class Abandoned(Exception):
    """Raised when the result of a job is no longer wanted."""


class MediaPool:
    """A few threads: one each only for sound, steps, words and videos, the others for pictures, or for the
    rest and then for pictures.

    All threads except those for sound and words have a lower priority than the engine's thread.

    The pool holds at most the units in flight of the open sessions: a closed lane is emptied. Lanes of one
    priority take turns.
    """

    def __init__(self, threads: int | None = None) -> None:
        """Start at least six `threads`, one for each priority; by default one for each core, at most 8."""
        count = max(len(Priority), threads or min(_MOST_THREADS, os.cpu_count() or 1))
        others = (Priority.REST if i % 2 else Priority.PICTURES for i in range(count - 4))
        takes = [Priority.SOUND, Priority.STEPS, Priority.WORDS, Priority.VIDEOS, *others]
        self._waiting: dict[Priority, deque[Lane]] = {priority: deque() for priority in Priority}
        self.lock = threading.RLock()
        self._came = tuple(threading.Condition(self.lock) for _ in Priority)
        """Wakes the threads of each kind for new jobs. Every wake-up takes the GIL from the
        engine's thread.
        """
        self.units_without_words = 0
        """Units that wait for the words of their utterance."""
        self._is_stopped = False
        self._told = time.monotonic()
        self._threads = [
            threading.Thread(target=self._work, args=(own,), name=f"media-{i}", daemon=True)
            for i, own in enumerate(takes)
        ]
        for thread in self._threads:
            thread.start()

    def lane(self, on_wait: Job) -> "Lane":
        """Return the lane of a new session; `on_wait` is called from time to time while its work waits for
        other sessions.
        """
        return Lane(self, on_wait)

    def stop(self) -> None:
        """Start no further job; wait up to `STOP_S` for running ones."""
        with self.lock:
            self._is_stopped = True
            for came in self._came:
                came.notify_all()
        end = time.monotonic() + STOP_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def put(self, priority: Priority, lane: "Lane") -> None:
        """Queue the lane's next job. Called with `lock` held."""
        self._waiting[priority].append(lane)
        self.units_without_words += priority is Priority.WORDS
        for own, takes in _TAKES.items():
            if priority in takes:
                self._came[own].notify()

    def _work(self, own: Priority) -> None:
        if own not in (Priority.SOUND, Priority.WORDS):
            give_way()
        while (lane := self._next(own)) is not None:
            lane.work()
            if own is Priority.WORDS:
                with self.lock:
                    self.units_without_words -= 1
            self.tell()

    def check(self, lane: "Lane") -> None:
        """Report progress to waiting sessions, including that of `lane`, whose job is running.

        Raises `Abandoned` if that job is no longer wanted.
        """
        with self.lock:
            if self._is_stopped or lane.is_closed:
                raise Abandoned
        now = time.monotonic()
        if now - lane.told >= PROGRESS_S:
            lane.told = now
            lane.on_wait()
        self.tell()

    def tell(self) -> None:
        """Report progress, from time to time, to the sessions whose jobs wait."""
        for waiting in self._lanes_due():
            waiting.on_wait()

    def _next(self, own: Priority) -> "Lane | None":
        with self.lock:
            while not self._is_stopped:
                for priority in _TAKES[own]:
                    if self._waiting[priority]:
                        return self._waiting[priority].popleft()
                self._came[own].wait()
        return None

    def _lanes_due(self) -> "list[Lane]":
        """Return the lanes whose sessions are due for a progress event."""
        with self.lock:
            if time.monotonic() - self._told < PROGRESS_S:
                return []
            self._told = time.monotonic()
            return [lane for lanes in self._waiting.values() for lane in lanes if lane.is_waiting]


def give_way() -> None:
    """Lower the priority of this thread, so that it rarely delays the engine's thread.

    Where a system call filter forbids that, the thread works at the usual priority.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        try:
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + GIVES_WAY)
        except OSError as error:
            logger.warning("priority unchanged: media threads compete with the engine: %s", error)


class Lane:
    """The jobs of one session, done one at a time in order."""

    def __init__(self, pool: MediaPool, on_wait: Job) -> None:
        self.on_wait = on_wait
        self._pool = pool
        self._jobs: deque[tuple[Priority | None, Job]] = deque()
        self._is_busy = False
        """Whether a thread of the pool is working on the lane, or will be."""
        self.is_closed = False
        self.told = 0.0
        """Monotonic seconds of the last progress event for its session."""

    @property
    def is_waiting(self) -> bool:
        """Whether any job waits."""
        return bool(self._jobs)

    def submit(self, priority: Priority | None, job: Job) -> None:
        """Queue a job for the pool; a job that takes no time has no priority: see `follow`."""
        if priority is None:
            self.follow(job)
            return
        with self._pool.lock:
            self._jobs.append((priority, job))
            if not self._is_busy:
                self._is_busy = True
                self._pool.put(priority, self)

    def follow(self, job: Job) -> None:
        """Run a job that takes no time once all earlier ones are done, which may be at once."""
        with self._pool.lock:
            if self._is_busy:
                self._jobs.append((None, job))
                return
        job()

    def check(self) -> None:
        """Raise `Abandoned` after `close`. A long job calls it about ten times a second."""
        self._pool.check(self)

    def close(self) -> None:
        """Drop jobs that have not begun; long ones may end early."""
        with self._pool.lock:
            self.is_closed = True
            self._jobs.clear()

    def work(self) -> None:
        """Run the next job and those that follow it; called by the pool."""
        with self._pool.lock:
            job = self._jobs.popleft()[1] if self._jobs else None
        if job is not None:
            self._do(job)
        with self._pool.lock:
            while self._jobs and self._jobs[0][0] is None:
                self._do(self._jobs.popleft()[1])
            if self._jobs:
                priority = self._jobs[0][0]
                assert priority is not None
                self._pool.put(priority, self)
            else:
                self._is_busy = False

    @staticmethod
    def _do(job: Job) -> None:
        try:
            job()
        except Abandoned:
            pass
        except Exception:  # a thread that dies would leave its lane, and those behind it, waiting for ever
            logger.exception("a job of the media pool failed")
