"""`antiphon train`: what it refuses before it begins. tests/e2e/test_train.py runs the recipe."""

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


def test_train_file_that_is_not_there_exits_with_2(somewhere: Path) -> None:
    done = run_here("train", "lift.yaml")

    assert (done.code, done.err) == (2, "lift.yaml does not exist. Check the path.\n")


def test_train_without_the_synthesisers_exits_with_2_and_names_them(
    somewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(somewhere))
    done = run_here("train", LIFT)

    assert done.code == 2
    assert "espeak-ng and flite, not found here" in done.err
    assert done.err.endswith("apt-get install espeak-ng flite\n")
    assert not list(somewhere.iterdir())


def test_train_too_few_utterances_exits_with_2(somewhere: Path, programs: None) -> None:
    done = run_here("train", LIFT, "--utterances", 39)

    assert (done.code, done.err) == (2, "--utterances is 40 or more.\n")


def test_train_in_the_work_folder_of_another_domain_exits_with_2(somewhere: Path, programs: None) -> None:
    (somewhere / "work").mkdir()
    (somewhere / "work" / "domain.txt").write_text("another")
    done = run_here("train", LIFT, "--work", "work")

    assert done.code == 2
    assert done.err.startswith("work holds the work of another domain, or of this one before it was changed.")
    assert not (somewhere / "work" / "tokenizer").exists()


def test_train_in_a_work_folder_in_use_exits_with_2(somewhere: Path, programs: None) -> None:
    (somewhere / "work").mkdir()
    with open(somewhere / "work" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run_here("train", LIFT, "--work", "work")

    assert done.code == 2
    assert done.err.startswith("Another process is training in work. Wait for its end")


@pytest.fixture
def programs(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files by the names of the synthesisers, which these tests do not run."""
    folder = tmp_path_factory.mktemp("bin")
    for name in PROGRAMS:
        (folder / name).touch(0o755)
    monkeypatch.setenv("PATH", str(folder))
