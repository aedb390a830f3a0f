"""`make demo`'s command with the shipped checkpoint."""

import os
import subprocess
import sys
import wave
from pathlib import Path

from tests.support.patience import START_S


def test_the_demo_hears_an_answer_and_says_whether_it_was_right(tmp_path: Path) -> None:
    answer = tmp_path / "answer.wav"
    command = [sys.executable, "-m", "antiphon_command", "demo", "--out", str(answer)]
    # Its queue is its own, whatever other queue there is.
    env = os.environ | {"ANTIPHON_DISPATCHER": "redis://127.0.0.1:1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=START_S, env=env)
    verdict = done.stdout.strip().splitlines()[-1]
    assert (done.returncode == 0) == verdict.startswith("PASS"), done.stdout + done.stderr
    with wave.open(str(answer)) as file:
        assert file.getframerate() == 24_000
        assert file.getnframes() > 12_000
