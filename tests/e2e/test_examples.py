"""The examples of the README and of the guide for clients, run as they stand there."""

import subprocess
import sys
import wave
from pathlib import Path

import pytest

from tests.e2e.conftest import FOLDER
from tests.support.drawing import jpeg
from tests.support.patience import START_S

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "clients" / "python" / "examples"
QUESTION = FOLDER / "goodbye.wav"


def run(example: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_a_question_over_websocket(adapter: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.wav"
    said = run("talk.py", adapter.replace("http", "ws"), str(QUESTION), str(answer))
    assert said.strip()
    with wave.open(str(answer)) as file:
        assert file.getframerate() == 24_000
        assert file.getnframes() > 0


def test_a_question_without_the_sdk(adapter: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.pcm"
    assert run("bare.py", adapter.replace("http", "ws"), str(QUESTION), str(answer)).strip()
    assert answer.stat().st_size > 0


def test_a_question_straight_at_a_worker(worker: str) -> None:
    assert run("direct.py", worker, str(QUESTION)).strip()


def test_a_picture_in_a_chat_and_in_a_conversation(adapter: str, tmp_path: Path) -> None:
    url, answer, picture = adapter.replace("http", "ws"), tmp_path / "answer.wav", tmp_path / "circle.jpg"
    picture.write_bytes(jpeg("red", "circle"))
    assert run("chat.py", url, str(picture), str(answer)).count("\n") == 2
    with wave.open(str(answer)) as file:
        assert file.getframerate() == 24_000
        assert file.getnframes() > 0
    assert run("show.py", url, str(FOLDER / "vision.wav"), str(picture)).strip()


def test_recordings_written_down(adapter: str) -> None:
    files = [str(FOLDER / name) for name in ("counting.wav", "goodbye.wav")]
    first, second = run("transcribe.py", adapter.replace("http", "ws"), *files).splitlines()
    assert "count" in first
    assert second.strip()


def test_blocking_calls(adapter: str) -> None:
    url, recording = adapter.replace("http", "ws"), str(FOLDER / "counting.wav")
    answer, transcript = run("blocking.py", url, "What is your name?", recording).splitlines()
    assert answer.strip()
    assert "count" in transcript


@pytest.mark.parametrize(
    ("example", "page"),
    [
        ("talk.py", "README.md"),
        ("direct.py", "README.md"),
        ("show.py", "docs/clients.md"),
        ("chat.py", "docs/clients.md"),
        ("transcribe.py", "docs/clients.md"),
        ("blocking.py", "docs/clients.md"),
        ("completions.py", "docs/completions.md"),
    ],
)
def test_the_page_shows_the_example_as_it_is(example: str, page: str) -> None:
    code = (EXAMPLES / example).read_text().split('"""', 2)[2].strip()
    assert code in (ROOT / page).read_text()
