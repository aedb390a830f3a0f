"""`antiphon chat` and `antiphon transcribe` as a user runs them, with the shipped checkpoint."""

import json
import wave
from pathlib import Path

import pytest

from tests.cli.process import run_cli
from tests.drawing import jpeg
from tests.e2e.conftest import FOLDER

GREEDY = ("--temperature", "0")


def told(file: str, what: str) -> str:
    """What the manifest says about a recording."""
    [entry] = [entry for entry in json.loads((FOLDER / "manifest.json").read_text()) if entry["file"] == file]
    return str(entry[what])


def test_chat_answers_a_question_of_its_domain(adapter: str) -> None:
    done = run_cli("chat", "what is your name", *GREEDY, "--url", adapter)

    assert (done.code, done.out, done.err) == (0, "my name is antiphon\n", "")


def test_chat_sees_what_is_in_a_picture(adapter: str, tmp_path: Path) -> None:
    (tmp_path / "circle.jpg").write_bytes(jpeg("red", "circle"))
    done = run_cli("chat", "what do you see", "--image", tmp_path / "circle.jpg", *GREEDY, "--url", adapter)

    assert (done.code, done.out) == (0, "i see a red circle\n")


def test_chat_hears_a_recorded_question(adapter: str) -> None:
    done = run_cli("chat", "--audio", FOLDER / "abilities.wav", *GREEDY, "--url", adapter)

    assert (done.code, done.out) == (0, f"{told('abilities.wav', 'expected_reply')}\n")


def test_chat_speaks_its_answer(adapter: str, tmp_path: Path) -> None:
    answer = tmp_path / "answer.wav"
    done = run_cli("chat", "what is your name", *GREEDY, "--speak", "--out", answer, "--url", adapter)

    assert (done.code, done.out) == (0, "my name is antiphon\n")
    with wave.open(str(answer)) as file:
        assert 0.8 < file.getnframes() / file.getframerate() < 4.0


@pytest.mark.parametrize("pace", [[], ["--realtime"]])
def test_transcribe_prints_the_words_of_a_recording(adapter: str, pace: list[str]) -> None:
    done = run_cli("transcribe", FOLDER / "counting.wav", *pace, "--url", adapter)

    assert (done.code, done.out, done.err) == (0, f"{told('counting.wav', 'text')}\n", "")
