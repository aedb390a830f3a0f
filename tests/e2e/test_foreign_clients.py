"""Clients in other languages against the real worker and adapter, run by the Node of this machine."""

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.clients import vectors
from tests.e2e.conftest import FOLDER
from tests.support.patience import START_S

ROOT = Path(__file__).parents[2]
TYPESCRIPT = ROOT / "clients" / "typescript"
JAVASCRIPT = ROOT / "clients" / "javascript"
BUILD_S = 600.0

needs_node = pytest.mark.skipif(
    shutil.which("npm") is None, reason="Node is not installed here: apt-get install nodejs npm (20 or newer)"
)

COMPILERS = {"cpp": ("g++", "grpc_cpp_plugin"), "go": ("go", "protoc-gen-go-grpc")}


def run(*command: str, timeout_s: float = START_S) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)


def make(*arguments: str) -> None:
    """Bring a client up to date, one process at a time; where nothing has changed its files stay."""
    with (ROOT / "Makefile").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        built = run("make", "--no-print-directory", *arguments, timeout_s=BUILD_S)
    assert built.returncode == 0, built.stdout + built.stderr


@pytest.fixture(scope="module")
def typescript() -> Path:
    make("typescript")
    return TYPESCRIPT / "dist"


@pytest.mark.parametrize("vector", vectors.read(), ids=lambda vector: vector.type)
def test_golden_vectors_in_python(vector: vectors.Vector) -> None:
    message = vectors.message(vector)
    assert message.SerializeToString(deterministic=True) == vector.data
    assert type(message).FromString(vector.data) == message


def check_conformance(program: list[str], worker: str, folder: Path) -> None:
    checked = run(*program, str(vectors.FILE), worker)

    assert checked.returncode == 0, checked.stdout + checked.stderr
    lines = checked.stdout.splitlines()
    assert sum(line.startswith("ok ") for line in lines) == len(lines) > len(vectors.read())

    rows = json.loads(vectors.FILE.read_text())
    rows[1]["json"]["unit"] = "4"
    wrong = folder / "wrong.json"
    wrong.write_text(json.dumps(rows))
    checked = run(*program, str(wrong), worker)

    assert checked.returncode == 1
    assert [line for line in checked.stdout.splitlines() if line.startswith("FAILED")] == [
        "FAILED  vector 1: PrefillRequest"
    ]


def check_talk(program: list[str], worker: str, folder: Path) -> None:
    answer = folder / "answer.wav"
    talk = run(*program, str(FOLDER / "name.wav"), str(answer), worker)

    assert (talk.returncode, talk.stdout.strip()) == (0, "my name is antiphon"), talk.stderr
    assert answer.stat().st_size > 44 + 24_000  # half a second of 16-bit sound

    talk = run(*program, str(vectors.FILE), str(answer), worker)

    assert (talk.returncode, talk.stderr) == (1, f"{vectors.FILE} is not a WAV file.\n")


@needs_node
def test_conformance_in_typescript(typescript: Path, worker: str, tmp_path: Path) -> None:
    check_conformance(["node", str(typescript / "conformance" / "main.js")], worker, tmp_path)


@needs_node
def test_spoken_conversation_in_typescript(typescript: Path, worker: str, tmp_path: Path) -> None:
    check_talk(["node", str(typescript / "examples" / "talk.js")], worker, tmp_path)


@pytest.fixture(scope="module", params=COMPILERS)
def compiled(request: pytest.FixtureRequest) -> Path:
    folder = ROOT / "clients" / request.param
    if not all(map(shutil.which, COMPILERS[request.param])):
        pytest.skip(f"{folder.relative_to(ROOT)}/Makefile names the packages that it is built with")
    make("-C", str(folder))
    return folder / "build"


@pytest.mark.long
@pytest.mark.timeout(BUILD_S + 300)
def test_conformance_and_conversation_of_a_compiled_client(
    compiled: Path, worker: str, tmp_path: Path
) -> None:
    check_conformance([str(compiled / "conformance")], worker, tmp_path)
    check_talk([str(compiled / "talk")], worker, tmp_path)


@needs_node
def test_websocket_example_in_javascript(adapter: str) -> None:
    source = JAVASCRIPT / "talk.js"
    assert len(source.read_text().splitlines()) <= 40
    url = adapter.replace("http", "ws") + "/v1/realtime?mode=audio"
    talk = run("node", "--experimental-websocket", str(source), str(FOLDER / "name.wav"), url)
    assert (talk.returncode, talk.stdout.strip()) == (0, "my name is antiphon"), talk.stderr
