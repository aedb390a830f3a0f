"""Tests of the services' logs: JSON lines, text on terminals, collapsed warnings."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon_service.telemetry.logs import (
    MOST_COLLAPSED,
    Collapse,
    JsonFormatter,
    SessionFields,
    SessionFilter,
    TextFormatter,
    configure,
    session_log,
)


class Terminal(io.StringIO):
    """A stream that somebody reads along."""

    def isatty(self) -> bool:
        return True


class Log:
    """A logger of its own that writes into `stream`."""

    def __init__(self, formatter: logging.Formatter | None = None, seconds: float = 10.0) -> None:
        self.now = 0.0
        self.stream = io.StringIO()
        self.logger = logging.Logger("there")
        handler = logging.StreamHandler(self.stream)
        handler.setFormatter(formatter or JsonFormatter())
        handler.addFilter(SessionFilter())
        handler.addFilter(Collapse(handler.handle, seconds, lambda: self.now))
        self.logger.addHandler(handler)

    @property
    def collapse(self) -> Collapse:
        found = self.logger.handlers[0].filters[1]
        assert isinstance(found, Collapse)
        return found

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    @property
    def events(self) -> list[tuple[str, int | None]]:
        return [(line["event"], line.get("repeated")) for line in self.lines]


@pytest.fixture
def restored_log() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.fixture
def log() -> Log:
    return Log()


def test_log_line_with_any_content_is_one_object_with_event_fields(log: Log) -> None:
    log.logger.info("session %s", "opened", extra={"mode": "chat", "nothing": None})
    log.logger.info('a\n{"event": "forged"}', extra={"more": "b\nc"})
    try:
        raise ValueError("no")
    except ValueError:
        log.logger.exception("it failed")
    opened, broken, failed = log.lines
    assert opened.pop("ts").endswith("+00:00")
    assert opened == {"level": "info", "logger": "there", "event": "session opened", "mode": "chat"}
    assert broken["event"] == 'a\n{"event": "forged"}'
    assert "ValueError: no" in failed["exception"]


async def test_each_session_has_its_own_fields_in_every_task(log: Log) -> None:
    async def session(name: str) -> None:
        fields = SessionFields(name, trace_id="t" + name)
        session_log.set(fields)
        await asyncio.sleep(0)
        fields.unit = 3
        await asyncio.create_task(say(name))

    async def say(name: str) -> None:
        log.logger.info("here is %s", name)

    await asyncio.gather(asyncio.create_task(session("a")), asyncio.create_task(session("b")))

    assert {(line["event"], line["session_id"], line["trace_id"], line["unit"]) for line in log.lines} == {
        ("here is a", "a", "ta", 3),
        ("here is b", "b", "tb", 3),
    }


def test_text_format_is_one_line_and_only_for_terminals(restored_log: None) -> None:
    log = Log(TextFormatter())
    log.logger.warning("the worker is %s", "gone", extra={"worker_id": "w", "trace_id": "0af7"})
    assert log.stream.getvalue()[8:] == " WARNING there: the worker is gone worker_id=w\n"
    for stream, is_json in ((io.StringIO(), True), (Terminal(), False)):
        configure("info", stream)
        logging.getLogger("there").info("yes")
        logging.getLogger("there").debug("no")
        (line,) = stream.getvalue().splitlines()
        assert line.startswith("{") is is_json


def test_repeated_warnings_are_collapsed_and_logged_once_with_count(log: Log) -> None:
    for number in range(5):
        log.logger.warning("client %d was not let in", number)
    assert log.events == [("client 0 was not let in", None)]
    log.now = 10.0
    log.logger.info("something else")
    assert log.events[1:] == [("client 4 was not let in", 4), ("something else", None)]
    log.logger.warning("client %d was not let in", 5)
    assert log.events[-1] == ("client 5 was not let in", None)


def test_flush_logs_collapsed_count_once_and_distinct_warnings_are_bounded(log: Log) -> None:
    for _ in range(3):
        log.logger.warning("again")
    log.collapse.flush()
    log.collapse.flush()
    assert log.events == [("again", None), ("again", 2)]
    for number in range(2 * MOST_COLLAPSED):
        log.logger.warning(f"warning {number}")
    assert len(log.lines) == 2 + 2 * MOST_COLLAPSED, "they do not hide each other"
    assert len(log.collapse._watched) == MOST_COLLAPSED


def test_single_warning_is_logged_once_and_only_warnings_collapse(log: Log) -> None:
    log.logger.warning("once")
    log.now = 20.0
    for _ in range(3):
        log.logger.info("told")
        log.logger.error("failed")
    assert log.events == [("once", None), *[("told", None), ("failed", None)] * 3]
