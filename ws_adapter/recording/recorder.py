"""The recorder of sessions: the event loop queues frames, and a thread writes them to disk."""

import asyncio
import errno
import logging
import re
import secrets
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, TypeVar

from ws_adapter.process.clock import Clock
from ws_adapter.process.errors import ConfigurationError, RecorderBusy
from ws_adapter.recording.folder import Client, Direction, Folder, Meta, iso
from ws_adapter.recording.retention import RecordingStore, StoredRecording

logger = logging.getLogger(__name__)

BACKLOG_BYTES: Final = 128 * 2**20
"""The most bytes of frames that may wait for the disk; further frames are dropped from their recordings."""

JOB_BYTES: Final = 512
"""The approximate overhead of a waiting frame in bytes."""

BATCH_S: Final = 0.05
"""The seconds for which frames are batched before they are written."""

FLUSH_S: Final = 3.0
"""The seconds for writing the remaining frames at shutdown."""

TIDY_S: Final = 600.0
"""The interval of removing expired recordings while no session is recorded."""

MOST_QUESTIONS: Final = 64
"""The most waiting requests for recordings."""

T = TypeVar("T")

MOST_OF_ALL: Final = 1 / 8
"""The largest share of all recordings for one session."""

_SHARE_USED: Final = "the recording has reached the largest size allowed for one"
_ALL_USED: Final = "the recordings have reached the largest size allowed"

_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_LABEL: Final = 128


@dataclass
class Counts:
    """The counts of this run's recordings."""

    complete: int = 0
    incomplete: int = 0
    """Recordings that ended incomplete, for any reason."""
    dropped_frames: int = 0
    """Frames that were dropped because the disk was too slow."""


@dataclass(slots=True)
class _Job:
    folder: Folder
    do: Callable[[], None]
    size: int = 0
    is_end: bool = False


class Recording:
    """The recording of one session, for the event loop's thread. Its methods never wait or raise."""

    def __init__(self, recorder: "Recorder", recording_id: str, folder: Folder, created: float) -> None:
        self.recording_id = recording_id
        self._recorder = recorder
        self._folder = folder
        self._created = created
        self._began = recorder.clock.now()
        self._seq = 0
        self._dropped = 0

    def up(self, frame: bytes, is_text: bool = True, *, is_refused: bool = False) -> None:
        """Record a frame from the client, without its media if its event was rejected."""
        self._add("up", frame, is_text, is_refused)

    def down(self, frame: bytes) -> None:
        """Record a text frame to the client."""
        self._add("down", frame, True)

    def end(self, close_reason: str, worker: str | None) -> None:
        """End the recording. Call it once. `worker` is the last worker of the session."""
        now = self._now()
        duration_s = round(now - self._created, 3)
        finish = partial(self._folder.finish, now, worker, close_reason, duration_s, self._dropped)
        self._recorder.hand_over(_Job(self._folder, finish, is_end=True))

    def _add(self, direction: Direction, frame: bytes, is_text: bool, is_refused: bool = False) -> None:
        ts = round(self._now(), 3)
        add = partial(self._folder.add, self._seq, ts, direction, frame, is_text, is_refused)
        self._seq += 1
        if not self._recorder.hand_over(_Job(self._folder, add, len(frame) + JOB_BYTES)):
            self._dropped += 1

    def _now(self) -> float:
        """Return the Unix time in seconds, without jumps of the system clock."""
        return self._created + self._recorder.clock.now() - self._began


class Recorder:
    """Recordings in the folder `root`; its faults affect no session.

    At most `backlog_bytes` of frames wait for the disk. Recordings older than `max_age_s` are removed. When
    all recordings use more than `max_bytes`, the oldest of the caller with the most bytes are removed first;
    0 is no bound. One session may use the fraction `most_of_all` of `max_bytes`.
    """

    def __init__(
        self,
        root: Path,
        clock: Clock,
        *,
        max_age_s: float,
        max_bytes: int,
        most_of_all: float = MOST_OF_ALL,
        backlog_bytes: int = BACKLOG_BYTES,
        flush_s: float = FLUSH_S,
    ) -> None:
        self.clock = clock
        self.counts = Counts()
        self._root = root.absolute()
        self._backlog_bytes = backlog_bytes
        self._flush_s = flush_s
        self._share_bytes = max_bytes * most_of_all or inf
        self._store = RecordingStore(self._root, max_age_s, max_bytes, self._failed)
        self._thread = threading.Thread(target=self._work, name="recorder", daemon=True)
        self._jobs: deque[_Job] = deque()
        self._news = threading.Event()
        # Two counters with one writer each need no lock.
        self._given = 0
        self._done = 0
        self._is_behind = False
        self._is_closed = False
        self._is_abandoned = False
        self._growing = 0
        self._questions: deque[Callable[[], None]] = deque()
        """Waiting requests for recordings, which the thread answers."""
        self._running: set[Folder] = set()
        self._is_failing = False

    def start(self) -> None:
        """Create the folder if it is missing, and start the thread.

        Raises `ConfigurationError` if the folder is not writable, except when the disk is full.
        """
        try:
            self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self._root).close()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise ConfigurationError(
                    f"Cannot record into {self._root}: {error.strerror}. Name a folder that can be written "
                    "to with --recordings, or leave the option out."
                ) from None
        self._thread.start()

    async def close(self) -> None:
        """Accept no more frames; return when all are written, or after `flush_s`."""
        self._is_closed = True
        self._news.set()
        await asyncio.to_thread(self._thread.join, self._flush_s)
        if self._thread.is_alive():
            self._is_abandoned = True
            logger.warning("recordings in %s: the end is missing, the disk is too slow", self._root)

    def begin(self, session_id: str, mode: str, client: Client) -> Recording:
        """Start the recording of a session; `session_id` is its public id."""
        label = _NOT_IN_A_NAME.sub("", session_id)[:_LONGEST_LABEL] or "session"
        recording_id = f"{label}-{secrets.token_hex(4)}"
        created = self.clock.unix()
        meta = Meta(session_id=session_id, mode=mode, created_at=iso(created), client=client)
        folder = Folder(self._root / recording_id, meta)
        self.hand_over(_Job(folder, folder.create))
        return Recording(self, recording_id, folder, created)

    async def ask(self, question: Callable[[], T]) -> T:
        """Run `question` in the thread, between two frames, and return its result. Raises `RecorderBusy`."""
        if self._is_closed or len(self._questions) >= MOST_QUESTIONS:
            raise RecorderBusy("too many requests for recordings wait; try again later")
        answer: Future[T] = Future()
        self._questions.append(partial(_answer, question, answer))
        self._news.set()
        return await asyncio.wrap_future(answer)

    def names(self) -> list[tuple[str, str, int]]:
        """Return name, caller and bytes of each recording, the oldest first. Call it in the thread only."""
        running = [(folder.path.name, folder.caller, folder.size) for folder in self._running]
        return [*((kept.name, kept.caller, kept.size) for kept in self._store.kept()), *running]

    def is_running(self, name: str) -> bool:
        """Return whether the session of a recording is running. Call it in the thread only."""
        return any(folder.path.name == name for folder in self._running)

    def remove(self, name: str) -> bool:
        """Remove a finished recording; return False if there is none. Call it in the thread only."""
        return self._store.remove(name)

    @property
    def backlog(self) -> int:
        """Bytes of frames that wait for the disk."""
        return self._given - self._done

    def hand_over(self, job: _Job) -> bool:
        """Queue a job for the thread; return False if the backlog is full, and count a dropped frame."""
        if self._is_closed:
            return False
        backlog = self.backlog
        if job.size and backlog + job.size > self._backlog_bytes:
            self.counts.dropped_frames += 1
            if not self._is_behind:
                self._is_behind = True
                logger.warning("recordings in %s: the disk is too slow, frames are left out", self._root)
            return False
        if self._is_behind and backlog <= self._backlog_bytes // 2:
            self._is_behind = False
            logger.info("recordings in %s: the disk keeps up again", self._root)
        self._given += job.size
        self._jobs.append(job)
        if not self._news.is_set():
            self._news.set()
        return True

    # -------------------------------------------------------------------------------- in the thread

    def _work(self) -> None:
        self._store.scan()
        self._tidy()
        while not self._is_abandoned and (self._jobs or not self._is_closed):
            if not self._news.wait(TIDY_S):
                self._tidy()
            self._news.clear()
            # Waking the thread is the main cost for the event loop, so a wake-up serves many frames.
            if not self._is_closed:
                time.sleep(BATCH_S)
            self._answer_questions()
            while self._jobs and not self._is_abandoned:
                self._answer_questions()
                job = self._jobs.popleft()
                self._do(job)
                self._done += job.size

    def _answer_questions(self) -> None:
        while self._questions:
            self._questions.popleft()()

    def _do(self, job: _Job) -> None:
        folder = job.folder
        if folder.meta.stopped is not None and not job.is_end:
            return
        before = folder.size
        self._running.add(folder)
        try:
            if not folder.is_discarded:
                job.do()
        except OSError as error:
            self._stop(folder, error)
        except Exception as error:
            logger.exception("recording %s failed", folder.path.name)
            self._stop(folder, error)
        self._growing += folder.size - before
        if job.is_end:
            self._store_finished(folder)
        elif folder.size > self._share_bytes:
            folder.meta.stopped = folder.meta.stopped or _SHARE_USED
        while (heaviest := self._tidy()) is not None:
            if folder.caller == heaviest and folder in self._running:
                self._stop(folder, OSError(errno.ENOSPC, _ALL_USED))
                break
            self._discard_largest_of(heaviest)

    def _discard_largest_of(self, caller: str) -> None:
        """Remove the largest running recording of a caller without a finished one."""
        largest = max((f for f in self._running if f.caller == caller), key=lambda folder: folder.size)
        largest.meta.stopped = _ALL_USED
        self._growing -= largest.size
        largest.discard()

    def _stop(self, folder: Folder, error: Exception) -> None:
        """Stop a recording: from now on only its end is written."""
        if folder.meta.stopped is None:
            folder.meta.stopped = _text(error)
            self._failed(error)

    def _store_finished(self, folder: Folder) -> None:
        self._growing -= folder.size
        self._running.discard(folder)
        if folder.size:
            self._store.put(StoredRecording(self.clock.unix(), folder.path.name, folder.size, folder.caller))
        if folder.meta.stopped is not None or folder.meta.dropped_frames:
            self.counts.incomplete += 1
            return
        self.counts.complete += 1
        if self._is_failing:
            self._is_failing = False
            logger.info("recordings in %s work again", self._root)

    def _tidy(self) -> str | None:
        return self._store.tidy(self.clock.unix(), self._growing, self._running)

    def _failed(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            logger.warning(
                "recordings in %s fail: %s. Sessions go on, their recordings may be incomplete. "
                "Make room or repair the folder",
                self._root,
                _text(error),
            )


def _answer(question: Callable[[], T], answer: "Future[T]") -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(question())
    except Exception as error:
        answer.set_exception(error)


def _text(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "a defect, see the log"
