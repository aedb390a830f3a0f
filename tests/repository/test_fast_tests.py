"""Tests of `make check`: its list of slow files is not stale, and fast tests cover every folder."""

from fnmatch import fnmatch

import pytest

from tests.conftest import SLOW, TESTS

FILES = sorted(file.relative_to(TESTS).as_posix() for file in TESTS.rglob("test_*.py"))
FAST = [file for file in FILES if not any(fnmatch(file, pattern) for pattern in SLOW)]
FOLDERS = sorted({file.split("/")[0] for file in FILES} - {"cluster", "e2e", "storm"})


@pytest.mark.parametrize("pattern", SLOW)
def test_a_slow_file_is_there(pattern: str) -> None:
    assert any(fnmatch(file, pattern) for file in FILES), "has it moved? Then move its line too"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_has_fast_tests(folder: str) -> None:
    assert any(file.startswith(f"{folder}/") for file in FAST)


def test_most_files_are_fast() -> None:
    assert len(FAST) > len(FILES) / 2
