"""`antiphon chat` and `antiphon transcribe` as a user runs them, with the shipped checkpoint."""

import json
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from antiphon import read_wav, write_wav
from tests.cli.support.process import run_cli, run_without
from tests.e2e.conftest import FOLDER, RATE
from tests.support.drawing import jpeg

GREEDY = ("--temperature", "0")


def told(file: str, what: str) -> str:
    [entry] = [entry for entry in json.loads((FOLDER / "manifest.json").read_text()) if entry["file"] == file]
    return str(entry[what])


def test_chat_answers_text_picture_and_audio_in_writing(adapter: str, tmp_path: Path) -> None:
    (tmp_path / "circle.jpg").write_bytes(jpeg("red", "circle"))
    reply = told("abilities.wav", "expected_reply")
    for question, answer in (
        (["what is your name"], "my name is antiphon"),
        (["what do you see", "--image", tmp_path / "circle.jpg"], "i see a red circle"),
        (["--audio", FOLDER / "abilities.wav"], reply),
    ):
        done = run_cli("chat", *question, *GREEDY, "--url", adapter)
        assert (done.code, done.out, done.err) == (0, f"{answer}\n", "")


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


@pytest.mark.parametrize("command", ["chat", "transcribe"])
def test_recording_of_more_than_a_minute_is_heard_to_its_end(
    adapter: str, tmp_path: Path, command: str
) -> None:
    speech = read_wav(FOLDER / "abilities.wav")
    write_wav(tmp_path / "long.wav", np.concatenate([np.zeros(65 * RATE, np.float32), speech]), RATE)
    arguments = ["--audio", tmp_path / "long.wav", *GREEDY] if command == "chat" else [tmp_path / "long.wav"]
    done = run_cli(command, *arguments, "--url", adapter)

    expected = told("abilities.wav", "expected_reply" if command == "chat" else "text")
    assert (done.code, done.out) == (0, f"{expected}\n")


def test_refusal_of_a_large_picture_names_the_limit_and_the_size(adapter: str, tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    Image.new("RGB", (3000, 2000), "red").save(photo)
    done = run_without("PIL", "chat", "what do you see", "--image", str(photo), "--url", adapter)
    assert done.code == 1
    assert "expected at most 4000000 pixels, got 3000 x 2000" in done.err
    assert len(done.err.splitlines()) == 1
