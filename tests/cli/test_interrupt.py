"""Tests of Ctrl-C while a command still imports its modules."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BLOCKING = """
import signal
print("loading", flush=True)
while True:
    signal.pause()
"""
"""A module that takes for ever to load; what ends it in here is the handler, and no exception."""

SWALLOWING = """
import time
print("loading", flush=True)
try:
    time.sleep(60)
except BaseException:
    raise ImportError("something broke in here") from None
"""
"""One that makes another error out of the interrupt, as extension modules do."""


@pytest.mark.parametrize("module", [BLOCKING, SWALLOWING])
@pytest.mark.parametrize("command", [["serve"], ["talk", "a.wav"]], ids=" ".join)
def test_ctrl_c_during_imports_prints_one_line(tmp_path: Path, command: list[str], module: str) -> None:
    (tmp_path / "numpy.py").write_text(module)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-m", "antiphon_command", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": path},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)

        assert process.wait(30) == 1
        assert process.stderr.read() == "Interrupted.\n"


def test_ctrl_c_stays_ignored_where_the_shell_has_it_ignored(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit(7)\n"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$0" -m antiphon_command talk a.wav', sys.executable],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )

    assert (done.returncode, done.stderr) == (7, "")
