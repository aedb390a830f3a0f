"""The search for the largest crowd, and the crowd itself with a small model on the CPU."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.crowd.workload import LISTENS, SAYS
from benchmarks.full_size.folder import write_folder
from benchmarks.full_size.sizes import TINY
from benchmarks.gpu_crowd import __main__ as gpu_crowd
from benchmarks.gpu_crowd import model, search
from benchmarks.gpu_crowd.agreement import agreements
from benchmarks.gpu_crowd.callers import Crowd, Unit
from benchmarks.gpu_crowd.journal import Journal
from benchmarks.gpu_crowd.phases import Phase
from benchmarks.gpu_crowd.report import Row, report
from benchmarks.gpu_crowd.search import SessionKind, Trial, largest, trial
from benchmarks.gpu_crowd.worker import Worker
from inference_service.device import transfer
from inference_service.models.minicpmo.model import MiniCPMO

CPU = torch.device("cpu")


def tried(sessions: int, *, holds: int) -> Trial:
    return Trial(sessions, 100, 0.0 if sessions <= holds else 0.5, 1.0, 2.0, 1.0, 6.0, 25.0)


@pytest.mark.parametrize(
    ("holds", "most", "found"),
    [(0, 100, None), (1, 100, 1), (16, 100, 16), (27, 100, 26), (64, 64, 64), (200, 50, 50)],
)
def test_the_largest_crowd_that_is_in_time_is_found_to_within_a_step(
    holds: int, most: int, found: int | None
) -> None:
    def attempt(sessions: int) -> Trial:
        return tried(sessions, holds=holds)

    trials = largest(attempt, first=8, most=most, step=2)
    best = Row(SessionKind(sees=False, slides=False), most, trials).best
    assert (best.sessions if best else None) == found
    assert len({it.sessions for it in trials}) == len(trials) <= 12
    assert [it.sessions for it in largest(attempt, 8, 100, 2, is_late=lambda: True)] == [8]


def test_a_unit_without_an_answer_is_late() -> None:
    units = [Unit(10.0, 10.1, 10.2), Unit(11.0, 11.1, 12.5), Unit(12.0), Unit(13.0, 13.1, 13.9)]
    assert trial(2, units).missed == 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the smallest size."""
    made = tmp_path_factory.mktemp("tiny")
    write_folder(made, TINY)
    return made


def test_benchmark_that_was_cut_off_repeats_no_finished_trial(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "--device cpu --size small --dtype float32 --seconds 0.1 --aged 1 --first 1 --most 1"
    files = ["--folder", str(folder), "--trials", str(tmp_path / "trials.jsonl")]
    monkeypatch.setattr("sys.argv", ["gpu_crowd", *given.split(), "--context-limit", "2048", *files])
    monkeypatch.setattr(search, "MOST_MISSED", 2.0)  # how late a busy machine is is no matter here
    upload, made = transfer.upload, list[str]()

    def run(worker: Worker, sessions: int, kind: SessionKind, **others: Any) -> Trial:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(kind.name)
        return search.run(worker, sessions, kind, **others)

    monkeypatch.setattr(gpu_crowd, "run", run)
    with pytest.raises(KeyboardInterrupt):
        gpu_crowd.main()
    monkeypatch.setattr(gpu_crowd, "run", search.run)

    assert gpu_crowd.main() == 0

    told = capsys.readouterr().out
    kinds = ("audio, window", "audio, no window", "video, window", "video, no window")
    assert made == list(kinds[:2])
    assert all(f"Of 1 sessions ({kind})" in told for kind in kinds)
    calls = [line.split(" | ") for line in told.splitlines() if line.startswith("| hear")]
    assert len(calls) == len(kinds)
    assert all(float(heard) > 0 and float(host_ms) > 0 for _, heard, host_ms, _ in calls)
    assert len((tmp_path / "trials.jsonl").read_text().splitlines()) == len(kinds)
    assert transfer.upload is upload, "nothing is timed any more"


def test_checkpoint_that_cannot_be_loaded_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("something else")
    given = ["--device", "cpu", "--size", "small", "--dtype", "float32", "--folder", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["gpu_crowd", *given])
    assert gpu_crowd.main() == 2
    assert "holds something else" in capsys.readouterr().err


def test_journal_finds_trials_of_the_same_settings_alone(tmp_path: Path) -> None:
    path, kind = tmp_path / "trials.jsonl", SessionKind(sees=False, slides=True)
    kept = replace(tried(4, holds=8), phases=(Phase("hear", 1.0, 2.0, 3.0),))
    Journal(path, {"seconds": 20}).attempt(kind, 4, lambda sessions: kept)
    journal = Journal(path, {"seconds": 20})
    assert journal.find(kind, 4) == kept
    assert journal.find(kind, 5) is None
    assert journal.find(SessionKind(sees=True, slides=True), 4) is None
    assert Journal(path, {"seconds": 10}).find(kind, 4) is None


def test_journal_leaves_out_a_line_that_was_cut_off(tmp_path: Path) -> None:
    path, kind = tmp_path / "trials.jsonl", SessionKind(sees=False, slides=True)
    for sessions in (4, 5):
        Journal(path, {}).attempt(kind, sessions, lambda sessions: tried(sessions, holds=8))
    path.write_text(path.read_text()[:-20])
    assert len(Journal(path, {})) == 1
    Journal(path, {}).attempt(kind, 5, lambda sessions: tried(sessions, holds=8))
    assert len(Journal(path, {})) == 2


def test_sessions_speak_and_listen_as_the_workload_says(folder: Path) -> None:
    """Two seconds of two sessions, one of which speaks, after three that were not timed."""
    worker = Worker(folder, "cpu", "float32", 512, most=2)
    try:
        crowd = Crowd(
            worker, (LISTENS - 2, 0), SessionKind(sees=True, slides=False).window, sees=True, seed=1
        )
        crowd.age(3)
        units = crowd.converse(2.0)
        crowd.close()
    finally:
        worker.close()
    assert [unit.speaks for unit in units] == [True, True, False, False]
    assert all(unit.due <= unit.first <= unit.done < float("inf") for unit in units)
    assert {unit.speech_tokens for unit in units if unit.speaks} == {25}
    assert {unit.text_tokens for unit in units if unit.speaks} == {1 + SAYS + 1}, "an opening, and an end"
    assert {unit.text_tokens for unit in units if not unit.speaks} == {1}, "listening is a decision"


def test_the_device_is_held_against_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    found = agreements(CPU, torch.bfloat16)
    assert all(it.holds for it in found)
    assert any(it.difference > 0 for it in found)
    assert "met" in report("tiny", CPU, [], found)

    spoilt = model.filled

    def spoil(hollow: MiniCPMO, state: dict[str, torch.Tensor]) -> MiniCPMO:
        state["llm.model.norm.weight"] = state["llm.model.norm.weight"] * 1.5
        return spoilt(hollow, state)

    monkeypatch.setattr(model, "filled", spoil)
    assert "MISSED" in report("tiny", CPU, [], agreements(CPU, torch.float32))
