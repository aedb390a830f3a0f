"""Tests of the errors of `antiphon train` before it begins; tests/e2e/test_train.py runs the recipe."""

import fcntl
from pathlib import Path

import pytest

from antiphon_training import domains
from antiphon_training.run import PROGRAMS
from tests.cli.support.process import run_here

LIFT = Path(domains.__file__).with_name("lift.yaml")


@pytest.fixture
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_train_mistake_in_the_file_exits_with_2_and_names_the_line(somewhere: Path) -> None:
    (somewhere / "lift.yaml").write_text(LIFT.read_text().replace("0..9", "9..0"))
    done = run_here("train", "lift.yaml")

    assert done.code == 2
    assert done.err == "lift.yaml:8: slot floor ends before it begins: write 0..9.\n"
    assert [path.name for path in somewhere.iterdir()] == ["lift.yaml"]


def test_train_without_the_synthesisers_exits_with_2_and_names_them(
    somewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(somewhere))
    done = run_here("train", LIFT)

    assert done.code == 2
    assert "espeak-ng and flite, which are not installed" in done.err
    assert done.err.endswith("apt-get install espeak-ng flite\n")
    assert not list(somewhere.iterdir())


def test_train_missing_file_or_too_few_utterances_exit_with_2(somewhere: Path, programs: None) -> None:
    missing, too_few = run_here("train", "lift.yaml"), run_here("train", LIFT, "--utterances", 39)

    assert (missing.code, missing.err) == (2, "lift.yaml does not exist. Check the path.\n")
    assert (too_few.code, too_few.err) == (2, "--utterances is 40 or more.\n")


def test_train_in_the_work_folder_of_another_domain_or_process_exits_with_2(
    somewhere: Path, programs: None
) -> None:
    (somewhere / "work").mkdir()
    (somewhere / "work" / "domain.txt").write_text("another")
    foreign = run_here("train", LIFT, "--work", "work")
    with open(somewhere / "work" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        in_use = run_here("train", LIFT, "--work", "work")

    assert (foreign.code, in_use.code) == (2, 2)
    assert foreign.err.startswith("work holds files of another domain, or of another version of this one.")
    assert in_use.err.startswith("Another process is training in work. Wait until it ends")
    assert not (somewhere / "work" / "tokenizer").exists()


@pytest.fixture
def programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files by the names of the synthesisers, which these tests do not run."""
    folder = tmp_path_factory.mktemp("bin")
    for name in PROGRAMS:
        (folder / name).touch(0o755)
    monkeypatch.setenv("PATH", str(folder))
