"""Names of the hub: told from paths, and a clear end where there is no hub."""

import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub.utils import filter_repo_objects

from inference_service.checkpoints import hub
from inference_service.checkpoints.location import find, is_hub_name
from tests.inference_service.models.minicpmo import published
from tests.support.patience import PATIENCE_S

FETCH = "import sys; from inference_service.checkpoints.hub import fetch; print(fetch(sys.argv[1]))"
FIND = "import sys; from inference_service.checkpoints.location import find; print(find(sys.argv[1]))"
UNREACHABLE = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    ("names", "are_names"),
    [
        (["openbmb/MiniCPM-o-4_5", "a/b", "some.one/x_y-z.1"], True),
        (["antiphon-mini", "/a/b", "./a/b", "../a", "a/b/c", "a/", "~/a", "a b/c", ""], False),
    ],
)
def test_owner_and_name_are_a_name_and_anything_else_is_none(names: list[str], are_names: bool) -> None:
    assert [name for name in names if is_hub_name(name) is not are_names] == []


def test_files_of_all_layouts_are_downloaded_but_no_code_and_no_pickles() -> None:
    moshi = ["config.json", "model.safetensors", "tokenizer_spm_32k_3.model"]
    minicpmo = ["model-00001-of-00004.safetensors", "tokenizer.json", "merges.txt", "chat_template.jinja"]
    others = ["modeling_minicpmo.py", "pytorch_model.bin", "voices.tgz", "flow.pt"]
    found = filter_repo_objects([*moshi, *minicpmo, *others], allow_patterns=hub.WANTED)
    assert list(found) == [*moshi, *minicpmo]


def ask(program: str, name: str, home: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a program by itself: the hub's library reads its variables when it is imported."""
    return subprocess.run(
        [sys.executable, "-c", program, name],
        env={"PATH": "/usr/bin:/bin", "HF_HOME": str(home / "hub"), "HF_ENDPOINT": UNREACHABLE} | variables,
        cwd=home,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


@pytest.mark.parametrize(
    ("program", "variables"), [(FIND, {}), (FETCH, {"HF_HUB_OFFLINE": "1"})], ids=["unreachable", "offline"]
)
def test_without_a_hub_the_error_says_what_to_do(
    tmp_path: Path, program: str, variables: dict[str, str]
) -> None:
    done = ask(program, "openbmb/MiniCPM-o-4_5", tmp_path, **variables)
    assert done.returncode != 0
    assert done.stderr.strip().splitlines()[-1] == (
        "inference_service.models.errors.CheckpointError: 'openbmb/MiniCPM-o-4_5' is no folder here, and the "
        "Hugging Face hub cannot be reached, and no earlier download exists. Download the checkpoint where "
        "the hub can be reached, and give the path of its folder."
    )


class Refusal(BaseHTTPRequestHandler):
    """A hub that has no such model."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def test_a_name_that_the_hub_does_not_have_is_refused(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        done = ask(FETCH, "nobody/nothing", tmp_path, HF_ENDPOINT=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert "'nobody/nothing' is no folder here, and the Hugging Face hub refuses it (404)." in done.stderr


def test_cached_snapshot_is_found_offline(tmp_path: Path) -> None:
    """In the cache's own layout."""
    cached = tmp_path / "hub/hub/models--openbmb--MiniCPM-o-4_5"
    snapshot = published.write(cached / "snapshots/0123456789abcdef0123456789abcdef01234567")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text(snapshot.name)
    done = ask(FETCH, "openbmb/MiniCPM-o-4_5", tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == snapshot


def test_a_downloaded_model_has_its_name_on_the_hub(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--openbmb--MiniCPM-o-4_5/snapshots/0123456789abcdef"
    assert hub.model_name(snapshot) == "MiniCPM-o-4_5"
    assert hub.model_name(tmp_path / "MiniCPM-o-4_5") == "MiniCPM-o-4_5"


def test_a_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    published.write(tmp_path / "openbmb/MiniCPM-o-4_5")
    monkeypatch.chdir(tmp_path)
    assert find("openbmb/MiniCPM-o-4_5") == Path("openbmb/MiniCPM-o-4_5")
