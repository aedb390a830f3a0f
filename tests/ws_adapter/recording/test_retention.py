"""How long recordings stay."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.ws_adapter.support.recordings import NOBODY, append, noise, read_recording, recording_to
from tests.ws_adapter.support.stage import ManualClock
from ws_adapter.recording.folder import Client
from ws_adapter.recording.recorder import Recorder, Recording


def begin(recorder: Recorder, client: Client = NOBODY, seconds: int = 1) -> Recording:
    """Begin the recording of a session with so much audio."""
    recording = recorder.begin("s", "audio", client)
    for _ in range(seconds):
        recording.up(append(noise(1)))
    return recording


def whole(recorder: Recorder, client: Client = NOBODY, seconds: int = 1) -> str:
    """Record a session to its end; return the recording's id."""
    recording = begin(recorder, client, seconds)
    recording.end("user_stop", None)
    return recording.recording_id


async def keep(root: Path, clock: ManualClock, **options: Any) -> str:
    """Record a session in a run of its own; return the recording's id."""
    async with recording_to(root, clock, **options) as recorder:
        return whole(recorder)


def kept(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def used(root: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*"))


def made_at(recording: Path, time: float) -> None:
    """The recording is as old as that."""
    for path in (recording, *recording.rglob("*")):
        os.utime(path, (time, time))


async def test_the_oldest_recordings_go_when_there_is_too_much(tmp_path: Path) -> None:
    async with recording_to(tmp_path, max_bytes=200_000) as recorder:
        names = [whole(recorder) for _ in range(6)]
    assert kept(tmp_path) == set(names[-2:])
    assert used(tmp_path) < 200_000


async def test_recordings_of_earlier_runs_count(tmp_path: Path) -> None:
    clock = ManualClock()
    names = [await keep(tmp_path, clock) for _ in range(4)]
    for age, name in enumerate(names):
        made_at(tmp_path / name, 1000 - age)
    latest = await keep(tmp_path, clock, max_bytes=250_000)
    assert kept(tmp_path) == {names[0], names[1], latest}


async def test_recordings_go_when_they_are_too_old(tmp_path: Path) -> None:
    clock = ManualClock()
    old, young = await keep(tmp_path, clock), await keep(tmp_path, clock)
    for name, age in ((old, 101), (young, 99)):
        made_at(tmp_path / name, clock.unix() - age)
    await clock.advance(1e9)
    async with recording_to(tmp_path, clock):
        pass
    assert kept(tmp_path) == {old, young}, "the bounds are off"
    await clock.advance(-1e9)
    async with recording_to(tmp_path, clock, max_age_s=100):
        pass
    assert kept(tmp_path) == {young}


async def test_nothing_but_recordings_is_removed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere-0123abcd"
    for folder in (root / "photos", root / "notes-0123abcd", elsewhere):
        folder.mkdir(parents=True)
        (folder / "keep.txt").write_text("mine")
    (elsewhere / "meta.json").write_text("{}")
    (root / "photos/meta.json").write_text("{}")
    (root / "link-0123abcd").symlink_to(elsewhere, target_is_directory=True)
    (root / "meta.json").write_text("{}")
    async with recording_to(root, max_age_s=0.001, max_bytes=1):
        pass
    assert kept(root) == {"photos", "notes-0123abcd", "link-0123abcd", "meta.json"}
    assert kept(elsewhere) == {"keep.txt", "meta.json"}
    assert not caplog.records


async def test_a_link_inside_a_recording_is_not_followed(tmp_path: Path) -> None:
    """And what has no summary that can be read is removed too."""
    root, outside, clock = tmp_path / "root", tmp_path / "outside", ManualClock()
    outside.mkdir()
    (outside / "keep.txt").write_text("mine")
    (root / await keep(root, clock) / "up").symlink_to(outside, target_is_directory=True)
    (root / await keep(root, clock) / "meta.json").write_bytes(b"\xff{")
    async with recording_to(root, clock, max_bytes=1):
        pass
    assert kept(root) == set()
    assert kept(outside) == {"keep.txt"}


async def test_running_recording_stops_at_the_bound(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with recording_to(tmp_path, max_bytes=300_000) as recorder:
        whole(recorder, seconds=20)
        other = whole(recorder)
    assert kept(tmp_path) == {other}, "the stopped one ended and was the oldest"
    assert (recorder.counts.complete, recorder.counts.incomplete) == (1, 1)
    assert [line.levelname for line in caplog.records] == ["WARNING"]


FLOODER = Client("192.0.2.66")


@pytest.mark.parametrize("at_once", [False, True])
async def test_flooding_caller_evicts_only_its_own_recordings(tmp_path: Path, at_once: bool) -> None:
    async with recording_to(tmp_path, max_bytes=600_000) as recorder:
        others = {whole(recorder, Client(f"192.0.2.{host}")) for host in range(4)}
        flood = [begin(recorder, FLOODER) for _ in range(40 * at_once)]
        for recording in flood:
            recording.end("user_stop", None)
        names = [whole(recorder, FLOODER) for _ in range(40 * (not at_once))]
    assert others < kept(tmp_path)
    assert at_once or names[-1] in kept(tmp_path), "his newest are kept"
    assert used(tmp_path) < 600_000


async def test_longest_recording_is_evicted_for_others(tmp_path: Path) -> None:
    async with recording_to(tmp_path, max_bytes=600_000) as recorder:
        long = begin(recorder, FLOODER, 20)
        other = whole(recorder, seconds=2)
        long.end("user_stop", None)
    assert kept(tmp_path) == {other}
    assert "stopped" not in read_recording(tmp_path / other).meta
    assert (recorder.counts.complete, recorder.counts.incomplete) == (1, 1)


async def test_one_session_has_its_share_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with recording_to(tmp_path, max_bytes=2_000_000, most_of_all=0.125) as recorder:
        long, short = begin(recorder, seconds=20), begin(recorder, seconds=2)
        for recording in (long, short):
            recording.end("user_stop", None)
    assert kept(tmp_path) == {long.recording_id, short.recording_id}
    assert "largest size allowed for one" in read_recording(tmp_path / long.recording_id).meta["stopped"]
    assert used(tmp_path / long.recording_id) < 2_000_000 / 8 + 100_000
    assert not caplog.records, "nothing is wrong with the disk"


async def test_callers_of_earlier_runs_have_separate_shares(tmp_path: Path) -> None:
    clock = ManualClock()
    async with recording_to(tmp_path, clock) as recorder:
        first = whole(recorder, Client("192.0.2.1", "a key"))
        for _ in range(6):
            whole(recorder, FLOODER)
    made_at(tmp_path / first, 1000)
    async with recording_to(tmp_path, clock, max_bytes=300_000) as recorder:
        latest = whole(recorder, FLOODER)
    assert {first, latest} <= kept(tmp_path), "though the first is the oldest"
    assert used(tmp_path) < 300_000
