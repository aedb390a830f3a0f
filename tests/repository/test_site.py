"""The documentation site builds without a warning, and shows code as it stands in tested files."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.drawing.source_tree import ROOT
from tests.repository.test_docs import GENERATED

PAGES = sorted((ROOT / "docs").rglob("*.md"))
FIND_IT = ROOT / "docs/howto/find-it.md"
BUILD_S = 300


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--config-file", str(config), "--site-dir", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, env=environment, cwd=ROOT)


def test_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    built = build(ROOT / "mkdocs.yml", tmp_path)
    assert built.returncode == 0, built.stderr

    start = (tmp_path / "index.html").read_text()
    assert "A first conversation" in start
    loaded = re.findall(r"<(?:script|img)[^>]+src=\"([^\"]+)|<link[^>]+stylesheet[^>]+href=\"([^\"]+)", start)
    assert loaded
    assert [address for pair in loaded for address in pair if address.startswith(("http", "//"))] == []

    for page in GENERATED:
        assert (tmp_path / page.removeprefix("docs/").removesuffix(".md") / "index.html").exists()
    assert "--session-limit-audio-s" in (tmp_path / "reference/cli/index.html").read_text()
    assert "antiphon_unit_seconds" in (tmp_path / "reference/metrics/index.html").read_text()
    assert "KV_EXHAUSTED" in (tmp_path / "reference/errors/index.html").read_text()
    assert "stream_file" in (tmp_path / "reference/sdk/index.html").read_text()


def test_site_with_a_link_to_nowhere_fails(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Start\n\n[Nowhere](nowhere.md)\n")
    (tmp_path / "mkdocs.yml").write_text("site_name: test\nstrict: true\nplugins: []\n")
    built = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert built.returncode != 0
    assert "nowhere.md" in built.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_of_a_file_is_as_it_stands_there(page: Path) -> None:
    blocks = re.findall(r"^```\w+ title=\"([^\"]+)\"\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert [name for name, code in blocks if code not in (ROOT / name).read_text()] == []


def test_tutorials_show_code() -> None:
    shown = [page.name for page in PAGES if '``` title="' in re.sub(r"```\w+ ", "``` ", page.read_text())]
    assert shown == ["client-in-fifty-lines.md", "first-grpc-client.md", "first-python-client.md"]


def test_searches_for_standard_terms_lead_to_the_named_files() -> None:
    rows = re.findall(r"^\| .+\? \| `(.+)` \| `(.+)` \|$", FIND_IT.read_text(), re.MULTILINE)
    assert len(rows) >= 20
    for term, name in rows:
        text = " ".join((ROOT / name).read_text().split()).lower()
        assert term.lower() in text, (term, name)
