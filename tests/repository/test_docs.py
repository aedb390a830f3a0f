"""Tests of the pages: the files, modules, links and headings that they name exist."""

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest

from docs.drawing.source_tree import PACKAGES, ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
OURS = (
    *("antiphon_service", "antiphon_training", "inference_service", "ws_adapter"),
    *("benchmarks", "clients", "deploy", "docs", "protos", "tests"),
)
GENERATED = ("docs/reference/cli.md", "docs/reference/metrics.md", "docs/reference/errors.md")
"""Pages that exist in the site alone."""

_SKIPPED = {"__pycache__", "node_modules", "dist", ".venv"}


@cache
def paths() -> set[str]:
    """Return every file and folder of ours, from the root."""
    found = {file.relative_to(ROOT) for name in OURS for file in (ROOT / name).rglob("*")}
    return {str(path) for path in found if not _SKIPPED & {*path.parts}} | {*OURS}


@cache
def modules() -> set[str]:
    """Return our modules and folders, as imports name them."""
    return {path.removeprefix("clients/python/").removesuffix(".py").replace("/", ".") for path in paths()}


def quoted(page: Path) -> Iterator[str]:
    """Yield the words between backticks."""
    for text in re.findall(r"`([^`\n]+)`", page.read_text()):
        yield from (word.strip("(),:;") for word in text.split())


def is_there(word: str) -> bool:
    """Whether a path exists: from the root, or below a package whose name is left out."""
    path = word.rstrip("/")
    return any(fnmatch(it, path) or fnmatch(it, f"*/{path}") for it in paths())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_modules_that_a_page_names_exist(page: Path) -> None:
    """A module as `package.module`, or `package.module.name` where it is told by what follows it."""
    files = rf"(?:{'|'.join(OURS)})/[\w./*-]*|[\w./*-]+\.py"
    dotted = r"(ws_adapter|inference_service|antiphon_\w+|benchmarks|tests)(\.\w+)+"
    words = set(quoted(page))
    assert [word for word in sorted(words) if re.fullmatch(files, word) and not is_there(word)] == []
    named = {word: {word, word.rpartition(".")[0]} for word in words if re.fullmatch(dotted, word)}
    assert [word for word, homes in named.items() if not homes & modules() - {*PACKAGES}] == []


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head).strip().lower().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    lost = []
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)(?:#([^)\s]+))?\)", page.read_text()):
        there = (page.parent / target).resolve() if target else page
        if there in {ROOT / name for name in GENERATED}:
            continue
        if not there.exists() or (anchor and anchor not in anchors(there)):
            lost.append(f"{target}#{anchor}")
    assert lost == []


EXAMPLES = {
    "A dialect": "transcri",
    "A model family": "voxtral",
    "A metric": "trace_contexts_invalid",
    "A command": "check.config",
}
"""Sections of "Where things go", and a word that all files have which they name."""


@pytest.mark.parametrize("section", EXAMPLES)
def test_files_that_an_addition_touched_speak_of_it(section: str) -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(f"### {section}: ")[2].partition("\n#")[0]
    files = re.findall(r"`(\w[\w./-]*/[\w./-]*)`", text)
    assert len(files) >= 5
    for name in files:
        if "for the worker" not in text.partition(f"`{name}`")[0].rpartition("\n")[2]:
            said = [it.read_text() for it in sorted((ROOT / name).glob("*.*"))] or [(ROOT / name).read_text()]
            assert any(re.search(EXAMPLES[section], it, re.IGNORECASE) for it in said), name


# The checks themselves.


def test_a_file_that_has_moved_is_missed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`ws_adapter/app.py (the command)`, `ws_adapter/gone.py`, `tests/gone/` and `app.py`.")
    missed = [word for word in quoted(page) if "/" in word and not is_there(word)]
    assert missed == ["ws_adapter/gone.py", "tests/gone/"]
    assert is_there("protocol/core/machine.py")
    assert is_there("ws_adapter/protocol/*/*_events.py")
    assert not is_there("core/gone.py")


def test_headings_become_anchors(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One page\n\n## Who gets what, and `why`?\n")
    assert anchors(page) == {"one-page", "who-gets-what-and-why"}
