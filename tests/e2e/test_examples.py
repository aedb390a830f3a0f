"""The examples of the README, run as they stand there."""

import subprocess
import sys
import wave
from pathlib import Path

import pytest

from tests.e2e.conftest import FOLDER

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "clients" / "python" / "examples"
QUESTION = FOLDER / "goodbye.wav"


def run(example: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_question_over_websocket(adapter: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.wav"
    said = run("talk.py", adapter.replace("http", "ws"), str(QUESTION), str(answer))
    assert said.strip()
    with wave.open(str(answer)) as file:
        assert file.getframerate() == 24_000
        assert file.getnframes() > 0


def test_a_question_straight_at_a_worker(worker: str) -> None:
    assert run("direct.py", worker, str(QUESTION)).strip()


@pytest.mark.parametrize("example", ["talk.py", "direct.py"])
def test_the_readme_shows_the_example_as_it_is(example: str) -> None:
    code = (EXAMPLES / example).read_text().split('"""', 2)[2].strip()
    assert code in (ROOT / "README.md").read_text()
