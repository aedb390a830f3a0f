"""The log of a service: JSON lines, or text on a terminal."""

import atexit
import json
import logging
import math
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Final, TextIO

COLLAPSE_S: Final = 10.0
"""The seconds within which repeated warnings are collapsed into one line."""

MOST_COLLAPSED: Final = 256
"""The number of different warnings that are tracked at a time; further ones are all written."""


@dataclass(slots=True)
class SessionFields:
    """The fields of a session's log lines; the session updates them in place."""

    session_id: str
    unit: int | None = None
    worker_id: str | None = None
    trace_id: str | None = None
    span_id: str | None = None


session_log: ContextVar[SessionFields | None] = ContextVar("session_log", default=None)
"""The session of the running task."""

_FIELDS: Final = tuple(field.name for field in fields(SessionFields))
_FOR_MACHINES: Final = frozenset({"trace_id", "span_id"})
_OWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", *_FIELDS}


def configure(level: str, stream: TextIO = sys.stderr) -> None:
    """Write the log of this process to `stream`: text on a terminal, otherwise JSON lines.

    `level` is the lower-case name of a level, such as `info`.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if stream.isatty() else JsonFormatter())
    handler.addFilter(SessionFilter())
    collapse = Collapse(handler.handle)
    handler.addFilter(collapse)
    atexit.register(collapse.flush)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class SessionFilter(logging.Filter):
    """A filter that adds the session's fields to each record at its creation."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields and return True, so that every record passes."""
        session = session_log.get()
        if session is not None:
            for name in _FIELDS:
                if not hasattr(record, name):
                    setattr(record, name, getattr(session, name))
        return True


class Collapse(logging.Filter):
    """A filter that passes the first of the warnings that repeat within `seconds`, and counts the others.

    A summary line with the count in `repeated` follows: before the next record of any kind after that time,
    or at `flush`.
    """

    def __init__(
        self,
        write: Callable[[logging.LogRecord], object],
        seconds: float = COLLAPSE_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__()
        self._write = write
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._watched: dict[tuple[str, object], _Repeated] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is written now."""
        if hasattr(record, "repeated"):
            return True
        now = self._clock()
        with self._lock:
            counted = self._take(now - self._seconds)
            passes = self._passes(record, now)
        for watched in counted:
            self._write(watched.summary())
        return passes

    def flush(self) -> None:
        """Write the summaries of the warnings that were counted so far."""
        with self._lock:
            counted = self._take(math.inf)
        for watched in counted:
            self._write(watched.summary())

    def _take(self, until: float) -> "list[_Repeated]":
        """Remove the warnings first written at `until` or before; return those that were repeated since."""
        over = [key for key, watched in self._watched.items() if watched.since <= until]
        return [watched for key in over if (watched := self._watched.pop(key)).count]

    def _passes(self, record: logging.LogRecord, now: float) -> bool:
        if record.levelno != logging.WARNING:
            return True
        key = record.name, record.msg
        watched = self._watched.get(key)
        if watched is None:
            if len(self._watched) < MOST_COLLAPSED:
                self._watched[key] = _Repeated(now)
            return True
        watched.count += 1
        watched.last = record
        return False


@dataclass(slots=True)
class _Repeated:
    """A warning and its repetitions since it was first written."""

    since: float
    count: int = 0
    last: logging.LogRecord | None = None

    def summary(self) -> logging.LogRecord:
        assert self.last is not None
        return logging.makeLogRecord({**vars(self.last), "repeated": self.count})


def _data(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of the session and of the event that have a value."""
    known = {name: getattr(record, name, None) for name in _FIELDS}
    more = {name: value for name, value in vars(record).items() if name not in _OWN}
    return {name: value for name, value in (known | more).items() if value is not None}


class JsonFormatter(logging.Formatter):
    """A formatter that writes one JSON object per line.

    Its keys are `ts`, `level`, `logger`, `event`, and the fields of the session and of the event.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line break at its end."""
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **_data(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """A formatter that writes text for people.

    A line has time, level, logger, event and fields; trace and span ids are left out.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with a traceback below it if there is one."""
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        shown = {name: value for name, value in _data(record).items() if name not in _FOR_MACHINES}
        data = " ".join(f"{name}={value}" for name, value in shown.items())
        line = f"{clock} {record.levelname:<7} {record.name}: {record.getMessage()} {data}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
