"""The texts and files of the page, without a browser."""

import re
import subprocess
from pathlib import Path

from tests.page.conftest import needs_node
from tests.support.patience import PATIENCE_S
from ws_adapter.pages.files import FOLDER, read_files

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "clients" / "browser"
SCRIPTS = sorted(FOLDER.glob("*.js"))


def texts(language: str) -> dict[str, str]:
    source = (FOLDER / f"{language}.js").read_text()
    return dict(re.findall(r'^  (\w+):\s*"((?:[^"\\]|\\.)*)",$', source, re.MULTILINE))


def test_both_languages_have_the_same_texts() -> None:
    english, chinese = texts("en"), texts("zh")
    assert len(english) > 150
    assert list(english) == list(chinese)
    for key, text in english.items():
        assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", chinese[key])), key
    for language in ("en", "zh"):  # each line of both is one text, so that none escapes
        lines = (FOLDER / f"{language}.js").read_text().splitlines()
        assert len([line for line in lines if re.match(r"  \w+:", line)]) == len(english)


def test_every_text_that_is_asked_for_is_there_and_used() -> None:
    page = (FOLDER / "index.html").read_text()
    asked = set(re.findall(r'data-t(?:-\w+)?="(\w+)"', page))
    code = "".join(script.read_text() for script in SCRIPTS if script.stem not in ("en", "zh"))
    asked |= set(re.findall(r'\bt\("(\w+)"', code))
    english = texts("en")
    assert asked - english.keys() == set()
    unused = english.keys() - set(re.findall(r"\w+", code)) - asked
    assert {
        key for key in unused if not key.startswith(("state_", "fail_")) and not key.endswith("_detail")
    } == set()


def test_every_failure_has_a_text_and_a_next_step() -> None:
    english = texts("en")
    code = (FOLDER / "failures.js").read_text()
    tables = code.partition("const DEVICES")[2].partition("export function ofDevice")[0]
    names = set(re.findall(r': "(\w+)"', tables))
    for script in SCRIPTS:
        names |= set(re.findall(r'\{ name: "(\w+)"[ ,]', script.read_text()))
    names -= set(re.findall(r'name: "(\w+)", text', (FOLDER / "examples.js").read_text()))
    assert len(names) > 15
    for name in names:
        assert english[f"fail_{name}"], name
        assert english[f"fail_{name}_next"], name


def test_page_is_made_of_the_client_that_others_import() -> None:
    linked = {file.name: file for file in (FOLDER / "client").iterdir()}
    sources = {file.name: file for file in (CLIENT / "src").iterdir()}
    assert linked.keys() == sources.keys()
    for name, file in linked.items():
        assert file.is_symlink(), name
        assert file.resolve() == sources[name].resolve(), name


def test_everything_that_is_imported_is_served() -> None:
    files = read_files()
    for name, file in files.items():
        if not name.endswith(".js"):
            continue
        for target in re.findall(r'^(?:import|export)\b.*"(\.[^"]+)";$', file.content.decode(), re.MULTILINE):
            assert ((FOLDER / name).parent / target).is_relative_to(FOLDER), (name, target)
            assert str(Path(name).parent / target) in files, (name, target)


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


@needs_node
def test_page_and_client_fit_the_published_events() -> None:
    checked = run("make", "--no-print-directory", "browser", folder=ROOT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_node
def test_an_event_that_is_not_published_is_found() -> None:
    source = (CLIENT / "src" / "chat.js").read_text()
    wrong = CLIENT / "src" / "wrong.js"
    wrong.write_text(source.replace("e.text_delta", "e.text_detla"))
    try:
        checked = run("npx", "tsc", folder=CLIENT)
    finally:
        wrong.unlink()
    assert checked.returncode != 0
    assert "text_detla" in checked.stdout
