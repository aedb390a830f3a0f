"""`antiphon talk` and `antiphon demo` in real time, against a worker that plays a script."""

import json
import os
import re
import signal
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from antiphon import write_wav
from antiphon_command.conversations import duplex
from tests.cli.support.process import ANTIPHON, Outcome, run, run_cli, run_here
from tests.cli.support.processes import processes_naming, serving


def assert_answer(path: Path, seconds: float) -> None:
    with wave.open(str(path)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        assert file.getnframes() == round(seconds * 24_000)
        assert np.frombuffer(file.readframes(-1), "<i2").any()


def test_talk_prints_the_timeline_and_writes_the_answer(url: str, question: Path, tmp_path: Path) -> None:
    answer = tmp_path / "answer.wav"
    done = run_cli("talk", question, "--url", url, "--out", answer)

    assert done.code == 0, done
    lines = [
        re.fullmatch(r" *(\d+\.\d\d) s  (.{12})(.*)|.*", line + " " * 12) for line in done.out.splitlines()
    ]
    assert all(line and line[1] for line in lines), done.out
    whats = [line[2].strip() for line in lines if line]
    expected = ["plays", "connected", "played", "says", "speaks", "turn ends", "closed", "saved"]
    assert [what for what in whats if what in expected] == expected
    times = [float(line[1]) for line in lines if line]
    assert times == sorted(times)
    assert 1.0 <= times[whats.index("says")] < 3.0
    assert '"Yes."' in done.out
    assert_answer(answer, 0.5)


@pytest.mark.long
def test_talk_without_an_answer_fails_when_time_is_up(
    question: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with serving(tmp_path_factory.mktemp("serve"), "listen") as serve:
        done = run_cli("talk", question, "--url", serve.address("WebSocket"), "--session-timeout", "1.5")

    assert done.code == 1
    assert "time is up" in done.out
    assert done.err.startswith("No answer was complete")
    assert "--session-timeout" in done.err


def test_talk_json_prints_each_event_as_a_line(url: str, question: Path, tmp_path: Path) -> None:
    answer = tmp_path / "answer.wav"
    done = run_cli("talk", question, "--url", url, "--json", "--out", answer)

    assert done.code == 0, done
    events = [json.loads(line) for line in done.out.splitlines()]
    times = [event.pop("time_s") for event in events]
    assert times == sorted(times)
    assert [event["type"] for event in events] == ["created", "text", "audio", "turn_end", "closed"]
    assert events[0]["mode"] == "full_duplex"
    assert events[1:4] == [
        {"type": "text", "unit": 0, "text": "Yes."},
        {"type": "audio", "audio_s": 0.5},
        {"type": "turn_end"},
    ]
    assert events[4]["reason"] == "user_stop"
    assert f"saved {answer}, 0.50 s of audio" in done.err
    assert_answer(answer, 0.5)


def test_out_file_after_interrupt_keeps_received_audio(url: str, tmp_path: Path) -> None:
    write_wav(tmp_path / "long.wav", np.zeros(160_000, np.float32), 16_000)
    answer = tmp_path / "answer.wav"
    command = [*ANTIPHON, "talk", tmp_path / "long.wav", "--url", url, "--out", answer]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as talk:
        assert talk.stdout is not None
        assert talk.stderr is not None
        while "speaks" not in talk.stdout.readline():
            pass
        talk.send_signal(signal.SIGINT)

        assert talk.wait(10) == 1
        assert "saved" in talk.stdout.read()
        assert talk.stderr.read() == "Interrupted.\n"
    with wave.open(str(answer)) as file:
        assert file.getnframes() >= 12_000
        assert np.frombuffer(file.readframes(-1), "<i2").any()


def test_recording_longer_than_the_answer_limit_is_sent_completely(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplex, "_ANSWER_S", 3.0)
    write_wav(tmp_path / "long.wav", np.zeros(4 * 16_000, np.float32), 16_000)

    done = run_here("talk", tmp_path / "long.wav", "--url", url, "--json")

    assert done.code == 0, done
    units = [event["unit"] for event in map(json.loads, done.out.splitlines()) if "unit" in event]
    assert max(units) >= 3


def test_time_limit_before_the_end_of_the_recording_fails(url: str, tmp_path: Path) -> None:
    write_wav(tmp_path / "long.wav", np.zeros(160_000, np.float32), 16_000)
    done = run_cli("talk", tmp_path / "long.wav", "--url", url, "--session-timeout", "1.5")

    assert done.code == 1
    assert done.err.startswith("Time was up before the recording was played to its end.")
    assert "--session-timeout" in done.err


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("/ws/chat", "is the address of something else"),
        ("/ws/duplex/adx_1", "is the address of something else"),
        ("/v1/transcription", "is the address of something else"),
        ("/v1/realtime?mode=video", "asks for video"),
        ("/v1/realtime?mode=chat", "asks for chat"),
        ("/v1/realtime?intent=transcription", "asks for transcription"),
    ],
)
def test_talk_refuses_the_address_of_another_service(question: Path, address: str, what: str) -> None:
    done = run_cli("talk", question, "--url", f"ws://127.0.0.1:1{address}")

    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("antiphon talk converses ")
    assert what in done.err
    assert "Name the root of the server with --url" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("address", ["/", "/v1/realtime"])
def test_talk_accepts_the_root_of_a_server_and_its_own_address(
    url: str, question: Path, address: str
) -> None:
    root = url.partition("/v1/")[0]

    assert run_cli("talk", question, "--url", root + address).code == 0


def demo(folder: Path, expected_reply: str) -> Outcome:
    """Runs the demo in `folder`, which has a question, with one recording after one that is not for it."""
    both = {"voice": "a", "command": "say"}
    asked = {"file": "question.wav", "text": "is it true", "expected_reply": expected_reply, "demo": True}
    entries = [{"file": "none.wav", "text": "say nothing", "expected_reply": "", **both}, asked | both]
    (folder / "manifest.json").write_text(json.dumps(entries))
    command = [sys.executable, "-m", "tests.cli.support.scripted_antiphon", "demo"]
    env = os.environ | {"ANTIPHON_TEST_SCRIPT": "reply", "TMPDIR": str(folder)}
    arguments = ["--recordings", str(folder), "--out", str(folder / "answer.wav")]
    return run([*command, *arguments], env, None, 60)


@pytest.mark.usefixtures("question")
def test_demo_passes_when_the_right_answer_was_heard(tmp_path: Path) -> None:
    done = demo(tmp_path, "yes")

    assert done.code == 0, done
    assert done.out.splitlines()[-1] == 'PASS: "is it true" was answered with "Yes.".'
    assert "turn ends" in done.out
    assert_answer(tmp_path / "answer.wav", 0.5)
    assert not list(tmp_path.glob("antiphon-*"))
    assert not processes_naming(str(tmp_path / "antiphon-"))


@pytest.mark.long
@pytest.mark.usefixtures("question")
def test_demo_fails_when_another_answer_was_heard(tmp_path: Path) -> None:
    done = demo(tmp_path, "ye")

    assert done.code == 1
    assert done.out.splitlines()[-1] == 'FAIL: "ye" was expected, "Yes." was heard.'
