"""Disks that are full, broken, gone or slow: the recording suffers, nobody else."""

import errno
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.patience import PATIENCE_S
from tests.ws_adapter.recording.test_retention import whole
from tests.ws_adapter.support.recordings import (
    NOBODY,
    append,
    b64,
    failing,
    noise,
    read_recording,
    recording_to,
)
from tests.ws_adapter.support.stage import ManualClock, until
from ws_adapter.process.errors import ConfigurationError
from ws_adapter.recording import recorder as recorder_module
from ws_adapter.recording.recorder import Recorder


def test_a_folder_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError) as error:
        Recorder(tmp_path / "file/below", ManualClock(), max_age_s=0, max_bytes=0).start()
    assert str(error.value) == (
        f"Cannot record into {tmp_path}/file/below: Not a directory. Name a folder that can be written to "
        "with --recordings, or leave the option out."
    )


async def test_a_disk_that_is_full_at_the_start_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    async with recording_to(tmp_path / "new") as recorder:
        whole(recorder)
    assert recorder.counts.incomplete == 1
    assert [line.levelname for line in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS, errno.EMFILE])
@pytest.mark.parametrize("name", ["open", "pwrite", "mkdir", "replace", "close"])
async def test_a_failing_disk_is_logged_once_and_nothing_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str, code: int
) -> None:
    monkeypatch.setattr(os, name, failing(name, code=code))
    async with recording_to(tmp_path) as recorder:
        for _ in range(3):
            recording = recorder.begin("s", "audio", NOBODY)
            for _ in range(3):
                recording.up(append(noise(0.1), video_frames=[b64(b"\xff\xd8\xff")]))
            recording.end("user_stop", None)
    assert recorder.counts.incomplete == 3
    assert recorder.counts.complete == 0
    assert [line.levelname for line in caplog.records] == ["WARNING"]
    assert os.strerror(code) in caplog.text


@pytest.mark.parametrize("after", range(1, 12))
async def test_recording_before_write_failure_is_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    samples = [noise(0.5) for _ in range(4)]
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing("pwrite", after=after))
        async with recording_to(tmp_path) as recorder:
            recording = recorder.begin("s", "audio", NOBODY)
            for clip in samples:
                recording.up(append(clip))
            recording.end("user_stop", None)
    read = read_recording(tmp_path / recording.recording_id)
    for line, clip in zip(read.lines, samples, strict=False):
        assert np.array_equal(read.samples(line["frame"]["input"]["audio"]), clip)
    assert "ended_at" not in read.meta
    assert all(path.stat().st_size for path in read.folder.iterdir()), "no empty file is left"


async def test_a_recording_goes_on_failing_alone_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with recording_to(tmp_path) as recorder:
        with monkeypatch.context() as patch:
            failed = threading.Event()
            stop = Recorder._stop
            patch.setattr(Recorder, "_stop", lambda *a: (stop(*a), failed.set()))
            patch.setattr(os, "pwrite", failing("pwrite", after=1))
            first = recorder.begin("first", "audio", NOBODY)
            first.up(b"{}")
            assert failed.wait(PATIENCE_S)
        first.up(b"{}")
        first.end("user_stop", None)
        second = whole(recorder)

    read = read_recording(tmp_path / first.recording_id)
    assert (read.lines, read.meta["stopped"]) == ([], "No space left on device")
    assert read.meta["close_reason"] == "user_stop"
    assert len(read_recording(tmp_path / second).lines) == 1
    assert [line.levelname for line in caplog.records] == ["WARNING", "INFO"]


async def test_folder_that_disappears_costs_its_recording(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with recording_to(tmp_path / "root") as recorder:
        (tmp_path / "root").rename(tmp_path / "gone")
        whole(recorder)
    assert recorder.counts.incomplete == 1
    assert [line.levelname for line in caplog.records] == ["WARNING"]
    assert not (tmp_path / "root").exists()


async def test_frames_are_left_out_and_counted_while_the_disk_is_too_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    is_slow, goes_on, write = threading.Event(), threading.Event(), os.pwrite

    def slow(*arguments: Any) -> int:
        is_slow.set()
        assert goes_on.wait(PATIENCE_S)
        return write(*arguments)

    monkeypatch.setattr(os, "pwrite", slow)
    async with recording_to(tmp_path, backlog_bytes=2 * (16 + recorder_module.JOB_BYTES)) as recorder:
        recording = recorder.begin("s", "audio", NOBODY)
        assert is_slow.wait(PATIENCE_S)
        for number in range(9):
            recording.up(json.dumps({"n": number, "": ""}).encode())
        assert recorder.counts.dropped_frames == 7
        goes_on.set()
        await until(lambda: not recorder.backlog)
        recording.up(b"{}")
        recording.end("user_stop", None)
    read = read_recording(tmp_path / recording.recording_id)

    assert [line["seq"] for line in read.lines] == [0, 1, 9], "a gap shows where frames are missing"
    assert read.meta["dropped_frames"] == 7
    assert recorder.counts.incomplete == 1
    assert [line.levelname for line in caplog.records] == ["WARNING", "INFO"]


async def test_a_disk_that_hangs_does_not_keep_the_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    goes_on, write = threading.Event(), os.pwrite

    def hang(*arguments: Any) -> int:
        assert goes_on.wait(PATIENCE_S)
        return write(*arguments)

    monkeypatch.setattr(os, "pwrite", hang)
    async with recording_to(tmp_path, flush_s=0.01) as recorder:
        recording = recorder.begin("s", "audio", NOBODY)
        recording.up(b"{}")
        recording.end("user_stop", None)
    (line,) = caplog.records
    goes_on.set()
    recorder._thread.join(10)
    assert line.getMessage().endswith("the end is missing, the disk is too slow")
    assert read_recording(tmp_path / recording.recording_id).lines == []
