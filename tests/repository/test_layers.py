"""Imports go one way, and a folder is a noun: `layers.toml` holds for the source."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from docs.drawing.layers import MOST, Layers, Subpackages, cycle, layers
from docs.drawing.source_tree import PACKAGES, SourceTree, repository


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def subpackages(package: str) -> Subpackages:
    return Subpackages(repository(), package)


def test_every_room_has_a_line_in_the_table_and_imports_go_down(
    subpackages: Subpackages, package: str
) -> None:
    assert subpackages.unlisted(layers(package)) == []
    assert subpackages.upward(layers(package)) == []


def test_no_circle_of_folders_or_modules(subpackages: Subpackages) -> None:
    assert cycle(subpackages.graph()) == ""
    assert cycle(subpackages.module_graph()) == ""


def test_packages_have_bounded_size_and_one_sentence_docstring(
    subpackages: Subpackages,
) -> None:
    assert subpackages.wrong_size() == []
    assert subpackages.undescribed() == []


# The checks themselves, on a house that breaks the rules.

TABLE: Layers = [["app"], ["upper", "beside"], ["lower"]]


FOLDERS = ("upper", "beside", "lower")


def house(folder: Path, sources: Mapping[str, str] = MappingProxyType({})) -> Subpackages:
    """A package with two modules in each of three folders, and `sources` besides."""
    files = {f"{name}/{module}": "" for name in FOLDERS for module in ("one", "two")}
    files |= {f"{name}/__init__": f'"""The {name} subpackage."""' for name in FOLDERS}
    files |= {"__init__": '"""A house."""', "app": "from box.upper import one"}
    for name, source in (files | dict(sources)).items():
        file = folder / f"{name}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(source)
    return Subpackages(SourceTree({"box": folder}), "box")


def faults(house: Subpackages) -> list[str]:
    found = house.unlisted(TABLE) + house.upward(TABLE) + house.wrong_size() + house.undescribed()
    return [*found, *filter(None, [cycle(house.graph()), cycle(house.module_graph())])]


@pytest.mark.parametrize(
    ("file", "source", "found"),
    [
        ("upper/one", "from box.lower.two import X\nfrom box.upper import two", []),
        (
            "upper/one",
            "import box.beside.two",
            ["box.upper.one imports box.beside.two in line 1: beside stands beside upper"],
        ),
        (
            "__init__",
            '"""A house."""\nfrom box.lower.one import X',
            ["box/__init__ has no line in layers.toml"],
        ),
    ],
    ids=["tidy", "import of a neighbour", "import by the package"],
)
def test_checker_sees_untidy_houses_alone(tmp_path: Path, file: str, source: str, found: list[str]) -> None:
    assert faults(house(tmp_path, {file: source})) == found


@pytest.mark.parametrize(
    "source",
    [
        "from box.upper.one import X",
        "from box.upper import one",
        "from ..upper import one",
        "import box.upper.one",
        "def late():\n    from box.upper import one",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from box.upper import one",
        "import importlib\none = importlib.import_module('box.upper.one')",
    ],
)
def test_checker_sees_an_upward_import_wherever_it_stands(tmp_path: Path, source: str) -> None:
    (found,) = faults(house(tmp_path, {"lower/one": source}))
    assert found.startswith("box.lower.one imports box.upper.one in line ")
    assert found.endswith(": upper stands above lower")


def test_checker_sees_circles_of_folders_that_no_modules_close(tmp_path: Path) -> None:
    subpackages = house(tmp_path, {"upper/one": "import box.lower.one", "lower/two": "import box.upper.two"})
    assert cycle(subpackages.graph()) in (
        "upper imports lower imports upper",
        "lower imports upper imports lower",
    )
    assert cycle(subpackages.module_graph()) == ""


def test_checker_sees_circles_of_modules_in_one_folder(tmp_path: Path) -> None:
    sources = {"lower/one": "import box.lower.two", "lower/two": "from . import one"}
    (found,) = faults(house(tmp_path, sources))
    assert sorted(set(found.split(" imports "))) == ["box.lower.one", "box.lower.two"]


def test_checker_sees_crowded_empty_and_lost_folders(tmp_path: Path) -> None:
    more = {f"lower/module{i}": "" for i in range(MOST - 1)}
    subpackages = house(tmp_path, {**more, "attic/one": "", "attic/__init__": '"""Nearly nothing."""'})
    assert subpackages.wrong_size() == [
        "box.attic has 1 modules and folders, fewer than 2",
        "box.lower has 16 modules, more than 15",
    ]
    assert subpackages.unlisted(TABLE) == ["box/attic has no line in layers.toml"]
    listed = [*TABLE, ["attic"], ["cellar"]]
    assert subpackages.unlisted(listed) == ["layers.toml names cellar, which is no subpackage of box"]


@pytest.mark.parametrize("docstring", ["", '"""Subpackages"""', '"""One thing. And another."""'])
def test_checker_reports_package_without_one_sentence_docstring(tmp_path: Path, docstring: str) -> None:
    (found,) = faults(house(tmp_path, {"lower/__init__": docstring}))
    assert found.startswith("box.lower does not say in one sentence what is in it: ")
