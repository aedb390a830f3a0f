"""Forbid the decoding process all but decoding, tried by a program in its place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import json, os, socket, sys

sys.path.insert(0, {root!r})
from inference_service.video import sandbox

results = {{}}

def attempt(name, act):
    try:
        act()
        results[name] = ""
    except BaseException as error:
        results[name] = type(error).__name__

sandbox.enter()
attempt("read a file", lambda: os.open("/etc/passwd", os.O_RDONLY))
attempt("write a file", lambda: os.open("/tmp/antiphon-sandbox", os.O_WRONLY | os.O_CREAT))
attempt("list a folder", lambda: os.listdir("/"))
attempt("remove a file", lambda: os.unlink("/tmp/antiphon-sandbox"))
attempt("network", lambda: socket.socket())
attempt("fork", os.fork)
attempt("run a program", lambda: os.execv("/bin/true", ["true"]))
attempt("signal another process", lambda: os.kill(os.getppid(), 0))
attempt("allocate 2 GiB", lambda: bytearray(2 << 30))
attempt("allocate 200 MiB", lambda: bytearray(200 << 20))
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(root=str(ROOT))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="no filter of system calls here")
@pytest.mark.parametrize(
    "act",
    [
        "read a file",
        "write a file",
        "list a folder",
        "remove a file",
        "network",
        "fork",
        "run a program",
        "signal another process",
    ],
)
def test_decoder_may_not(results: dict[str, str], act: str) -> None:
    assert results[act] == "PermissionError"


def test_decoder_has_less_than_two_gib_and_enough_to_work(results: dict[str, str]) -> None:
    assert (results["allocate 2 GiB"], results["allocate 200 MiB"]) == ("MemoryError", "")
