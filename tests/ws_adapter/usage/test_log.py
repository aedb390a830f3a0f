"""The usage log: whole lines in a file, whatever the disk does, and nobody waits for it."""

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from tests.ws_adapter.support.stage import until
from ws_adapter.process.errors import ConfigurationError
from ws_adapter.usage import log as module
from ws_adapter.usage.line import UsageLine, decode, schema
from ws_adapter.usage.log import UsageLog


def line(number: int = 0) -> UsageLine:
    return UsageLine(
        at="2026-11-27T12:00:00.000+00:00",
        session_id=f"sess_{number}",
        key="alice",
        key_id="0123456789ab",
        model="antiphon-mini",
        mode="chat",
        dialect="chat",
        via="websocket",
        seconds=1.5,
        input_tokens=10,
        output_tokens=20,
        reason="done",
    )


@asynccontextmanager
async def writing(path: Path, **options: Any) -> AsyncIterator[UsageLog]:
    log = UsageLog(path, **options)
    log.start()
    try:
        yield log
    finally:
        await log.close()


def numbers(path: Path) -> list[str]:
    return [decode(text).session_id for text in path.read_bytes().splitlines() if text]


async def test_each_session_appends_one_valid_line_after_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    path.write_bytes(b'{"v":1,"at"')
    for first in (0, 3):
        async with writing(path) as log:
            for number in range(first, first + 3):
                log.write(line(number))
        assert (log.written, log.lost) == (3, 0)
    torn, *lines = path.read_bytes().splitlines()
    assert torn == b'{"v":1,"at"'
    assert [decode(text).session_id for text in lines] == [f"sess_{number}" for number in range(6)]
    for text in lines:
        jsonschema.validate(msgspec.json.decode(text), schema())


async def test_two_adapters_may_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    async with writing(path) as one, writing(path) as other:
        for number in range(500):
            one.write(line(number))
            other.write(line(1000 + number))
    assert len(numbers(path)) == len(set(numbers(path))) == 1000


async def test_reopened_log_goes_on_in_a_new_file(tmp_path: Path) -> None:
    path, old = tmp_path / "usage.jsonl", tmp_path / "usage.jsonl.1"
    async with writing(path) as log:
        log.write(line(0))
        await until(lambda: log.written == 1)
        path.rename(old)
        log.reopen()
        await until(lambda: not log._wants_reopening)
        log.write(line(1))
    assert numbers(old) == ["sess_0"]
    assert numbers(path) == ["sess_1"]


async def test_log_that_cannot_be_reopened_goes_on_in_the_old_file(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    path, old = folder / "usage.jsonl", tmp_path / "old"
    async with writing(path) as log:
        path.rename(old)
        folder.rmdir()
        with pytest.raises(ConfigurationError, match="Cannot write the usage log"):
            log.reopen()
        log.write(line())
    assert numbers(old) == ["sess_0"]


async def test_full_disk_costs_lines_that_are_counted_and_nothing_else(tmp_path: Path) -> None:
    async with writing(Path("/dev/full")) as log:
        for number in range(3):
            log.write(line(number))
        await until(lambda: log.lost == 3)
    assert log.written == 0


async def test_line_after_a_torn_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "usage.jsonl"
    write, torn = os.write, [10]

    def short(file: int, data: bytes) -> int:
        return write(file, data[: torn.pop()] if torn else data)

    monkeypatch.setattr(module, "_write", short)
    async with writing(path) as log:
        log.write(line(0))
        log.write(line(1))
    first, second = path.read_bytes().splitlines()
    assert len(first) == 10
    assert decode(second).session_id == "sess_1"
    assert (log.written, log.lost) == (1, 1)


async def test_hanging_disk_blocks_no_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, hangs, write = threading.Event(), threading.Event(), os.write

    def hang(file: int, data: bytes) -> int:
        hangs.set()
        goes_on.wait()
        return write(file, data)

    monkeypatch.setattr(module, "_write", hang)
    async with writing(tmp_path / "usage.jsonl", most_waiting=5) as log:
        log.write(line())
        await until(hangs.is_set)
        for number in range(20):
            log.write(line(number))
        assert log.lost == 15
        goes_on.set()
    assert log.written == 6


def test_file_that_cannot_be_opened_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        UsageLog(tmp_path / "none" / "usage.jsonl")
