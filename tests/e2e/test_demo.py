"""`make demo`'s command with the shipped checkpoint."""

import os
import subprocess
import sys
import wave
import zipfile
from pathlib import Path

from tests.support.long import long
from tests.support.patience import START_S

ROOT = Path(__file__).parents[2]


def test_the_demo_hears_an_answer_and_says_whether_it_was_right(tmp_path: Path) -> None:
    answer = tmp_path / "answer.wav"
    command = [
        sys.executable,
        "-m",
        "antiphon.cli",
        "demo",
        "--out",
        str(answer),
    ]
    # Its queue is its own, whatever other queue there is.
    env = os.environ | {"ANTIPHON_DISPATCHER": "redis://127.0.0.1:1"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=START_S, env=env)
    verdict = done.stdout.strip().splitlines()[-1]
    assert (done.returncode == 0) == verdict.startswith("PASS"), done.stdout + done.stderr
    with wave.open(str(answer)) as file:
        assert file.getframerate() == 24_000
        assert file.getnframes() > 12_000


@long
def test_demo_of_an_installed_wheel_needs_no_checkout(tmp_path: Path) -> None:
    """The wheel in a folder of its own; its dependencies are those of this environment."""
    wheels, site, empty = tmp_path / "wheels", tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    source = tmp_path / "source"
    subprocess.run(["git", "clone", "--quiet", ROOT, source], check=True)  # builds leave files behind
    make = ["wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", wheels, source]
    subprocess.run([sys.executable, "-m", "pip", *map(str, make)], check=True)
    (wheel,) = wheels.glob("antiphon-*.whl")
    zipfile.ZipFile(wheel).extractall(site)

    command = [sys.executable, "-P", "-m", "antiphon.cli", "demo"]
    env = os.environ | {"ANTIPHON_DISPATCHER": "redis://127.0.0.1:1", "PYTHONPATH": str(site)}
    done = subprocess.run(command, cwd=empty, capture_output=True, text=True, timeout=START_S, env=env)

    assert done.stdout.strip().splitlines()[-1].startswith(("PASS", 'FAIL: "')), done.stdout + done.stderr
    assert [path.name for path in empty.iterdir()] == ["answer.wav"]
