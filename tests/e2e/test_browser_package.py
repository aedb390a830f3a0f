"""`clients/browser` as an npm package: packed, installed in an empty folder, and used from there."""

import asyncio
import json
import shutil
import subprocess
import tomllib
import wave
from asyncio.subprocess import PIPE
from pathlib import Path

import numpy as np
import pytest

from tests.failures.link import link_to
from tests.support.long import long
from tests.support.patience import START_S
from tests.support.scripted_engine import ScriptedEngine, listen, running_worker, speak, turn_end
from tests.ws_adapter.support.stage import running_adapter, until

ROOT = Path(__file__).parents[2]
BROWSER = ROOT / "clients" / "browser"
PAGE = ROOT / "ws_adapter/pages/app/client"
INSTALL_S = 4 * START_S

pytestmark = pytest.mark.skipif(
    shutil.which("npm") is None, reason="Node is not installed here: apt-get install nodejs npm (20 or newer)"
)


def run(folder: Path, *command: str | Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=INSTALL_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of the package's folder, in which it may leave files."""
    folder = tmp_path / "browser"
    shutil.copytree(BROWSER, folder, ignore=shutil.ignore_patterns("node_modules", "types", "dist"))
    return folder


def installed(source: Path, *options: str) -> Path:
    (packed,) = json.loads(run(source, "npm", "pack", "--json", *options))
    folder = source.parent / "empty"
    folder.mkdir()
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    archive = source / packed["filename"]
    run(folder, "npm", "install", "--offline", "--no-audit", "--no-fund", "--no-progress", archive)
    return folder


def test_package_has_the_modules_of_the_page_and_node_imports_them(source: Path) -> None:
    folder = installed(source, "--ignore-scripts")
    packed = {file.name: file.read_bytes() for file in folder.glob("node_modules/antiphon-browser/src/*")}
    assert packed == {file.name: file.read_bytes() for file in PAGE.glob("*.js")}
    code = 'import * as client from "antiphon-browser"; console.log(Object.keys(client).join(" "))'
    names = run(folder, "node", "--input-type=module", "-e", code).split()
    assert {"DuplexSession", "TranscriptionSession", "ask", "DIALECTS", "endpoint"} <= {*names}


def test_package_has_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    package = json.loads((BROWSER / "package.json").read_text())
    assert (package["version"], package["license"]) == (project["version"], project["license"])


@long
async def test_example_in_typescript_goes_on_after_a_lost_connection(source: Path, tmp_path: Path) -> None:
    """Compiled against the types of the package, and run with its modules."""
    run(source, "npm", "ci", "--no-progress")
    folder = installed(source)
    for file in ("talk.ts", "tsconfig.json"):
        shutil.copy(source / "examples" / file, folder)
    (folder / "node_modules" / "@types").symlink_to(source / "node_modules" / "@types")
    run(folder, source / "node_modules" / ".bin" / "tsc")

    question = tmp_path / "question.wav"
    with wave.open(str(question), "wb") as wav:
        wav.setparams((1, 2, 16_000, 0, "NONE", ""))
        wav.writeframes(np.full(16_000, 1000, "<i2").tobytes())
    engine = ScriptedEngine(listen(), speak("Hello "), turn_end("again.", hold="prefill"))
    options = {"resume_window_s": 60, "silence_tail_units": 0}
    async with running_worker(engine, slots=engine.slots) as worker:
        async with running_adapter(worker.address, **options) as stage:  # type: ignore[arg-type]
            async with link_to(stage.address.removeprefix("http://")) as link:
                command = ["node", "--experimental-websocket", "--no-warnings", "dist/talk.js", question]
                process = await asyncio.create_subprocess_exec(
                    *map(str, [*command, f"ws://{link.address}"]), cwd=folder, stdout=PIPE, stderr=PIPE
                )
                try:
                    async with asyncio.timeout(START_S):
                        assert process.stdout is not None
                        assert process.stderr is not None
                        begin = await process.stdout.readexactly(len("Hello "))
                        await until(lambda: 3 in engine.session.given)
                        link.cut()
                        told = [await process.stderr.readline() for _ in range(2)]
                        engine.session.release("prefill", 3)
                        rest, errors = await process.communicate()
                finally:
                    if process.returncode is None:
                        process.kill()
                        await process.wait()

    assert told == [b"connection lost; the server waits 60 s\n", b"the conversation goes on\n"]
    assert (begin + rest, errors) == (b"Hello again.\n", b"")
    assert process.returncode == 0
    assert len(engine.sessions) == 1
