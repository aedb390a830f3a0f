"""The usage log: one JSON line for each session, written by a thread of its own.

A full or slow disk loses lines, which are counted, but never delays or ends a session. Each line is appended
with one system call, so several adapters may share a file. After a partly written line the next one begins on
a new line.
"""

import asyncio
import logging
import os
import stat
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

from ws_adapter.process.errors import ConfigurationError
from ws_adapter.usage.line import UsageLine, encode

logger = logging.getLogger(__name__)

MOST_WAITING: Final = 10_000
"""The most lines that may wait for the disk; further ones are lost, and counted."""

SYNC_S: Final = 1.0
"""The longest delay in seconds between the write of a line and its fsync."""

CLOSE_S: Final = 3.0
"""The seconds for writing the remaining lines at the end."""

_MODE: Final = 0o640
_write = os.write


class UsageLog:
    """The usage log at `path`. After a rename of the file, `reopen` begins a new one."""

    def __init__(self, path: Path, most_waiting: int = MOST_WAITING) -> None:
        """Raise `ConfigurationError` if the file cannot be opened."""
        self._path = path
        self._most_waiting = most_waiting
        self.written = 0
        self.lost = 0
        self._lines: deque[bytes] = deque()
        self._news = threading.Condition()
        self._file = _open(path)
        self._wants_reopening = False
        self._is_closing = False
        self._is_torn = _is_torn(self._file, path)
        """Whether the file may end in the middle of a line."""
        self._has_failed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write."""
        self._thread = threading.Thread(target=self._run, name="usage log", daemon=True)
        self._thread.start()

    def write(self, line: UsageLine) -> None:
        """Queue a line for the thread; if the queue is full, count the line as lost."""
        with self._news:
            if len(self._lines) >= self._most_waiting:
                self.lost += 1
                return
            self._lines.append(encode(line))
            self._news.notify()

    def reopen(self) -> None:
        """Reopen the file for later lines. Raises `ConfigurationError`."""
        os.close(_open(self._path))  # raise an error here, in the caller's thread
        with self._news:
            self._wants_reopening = True
            self._news.notify()

    async def close(self) -> None:
        """Write the waiting lines, within `CLOSE_S`. Harmless when repeated."""
        with self._news:
            self._is_closing = True
            self._news.notify()
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(thread.join, CLOSE_S)

    # ------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        sync_at: float | None = None
        while True:
            with self._news:
                while not (self._lines or self._wants_reopening or self._is_closing):
                    left_s = None if sync_at is None else sync_at - time.monotonic()
                    if left_s is not None and (left_s <= 0 or not self._news.wait(left_s)):
                        break
                    if left_s is None:
                        self._news.wait()
                lines, reopens, is_closing = list(self._lines), self._wants_reopening, self._is_closing
                self._lines.clear()
                self._wants_reopening = False
            for line in lines:
                self._append(line)
            now = time.monotonic()
            if lines and sync_at is None:
                sync_at = now + SYNC_S
            if sync_at is not None and (now >= sync_at or is_closing or reopens):
                self._sync()
                sync_at = None
            if reopens:
                self._open_anew()
            if is_closing:
                os.close(self._file)
                return

    def _append(self, line: bytes) -> None:
        data = (b"\n" if self._is_torn else b"") + line + b"\n"
        try:
            count = _write(self._file, data)
        except OSError as error:
            self._failed(error)
        else:
            self._is_torn = count < len(data)
            if self._is_torn:
                self._failed(OSError(f"{count} of {len(data)} bytes were written"))
                return
            self.written += 1
            if self._has_failed:
                logger.info("usage log available again")
            self._has_failed = False

    def _failed(self, error: OSError) -> None:
        self.lost += 1
        if not self._has_failed:
            why = error.strerror or str(error)
            logger.error("usage log unavailable, lines are lost", extra={"reason": why})
        self._has_failed = True

    def _sync(self) -> None:
        with suppress(OSError):  # a pipe has no fsync, and the next write reports a failing disk
            os.fsync(self._file)

    def _open_anew(self) -> None:
        try:
            opened = _open(self._path)
        except ConfigurationError as error:
            logger.error("usage log not reopened, writing to the old file continues: %s", error)
            return
        os.close(self._file)
        self._file, self._is_torn = opened, _is_torn(opened, self._path)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
    except OSError as error:
        raise ConfigurationError(f"Cannot write the usage log {path}: {error.strerror}.") from None


def _is_torn(file: int, path: Path) -> bool:
    """Return whether a file ends in the middle of a line, as after a power cut."""
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode) or not about.st_size:
        return False
    with suppress(OSError), path.open("rb") as content:
        content.seek(-1, os.SEEK_END)
        return content.read(1) != b"\n"
    return True
