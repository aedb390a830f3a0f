"""The subpackages of each package, and the imports that `layers.toml` allows.

A subpackage is a folder, named by its path in the package, or a module directly in the package.
"""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final, NamedTuple

from docs.drawing.source_tree import SourceTree, is_within

TABLE: Final = Path(__file__).with_name("layers.toml")
MOST: Final = 15
"""The largest number of modules in a folder."""
LEAST: Final = 2
"""The least number of modules and folders in a folder."""

Layers = list[list[str]]
"""The subpackages of a package, top to bottom; those of one layer do not import each other."""


def layers(package: str) -> Layers:
    """Return the layers of a package from the table."""
    return [line.split() for line in tomllib.loads(TABLE.read_text())[package]["layers"]]


class Arrow(NamedTuple):
    """An import of a module of another subpackage of the same package."""

    importer: str
    imported: str
    line: int
    start: str
    """The subpackage of the importer."""
    end: str


class Subpackages:
    """The subpackages of one package of a source tree."""

    def __init__(self, tree: SourceTree, package: str) -> None:
        self._tree = tree
        self._package = package
        self.modules = tree.modules((package,))
        self.arrows = [
            Arrow(module, target, imported.line, self.subpackage(module), self.subpackage(target))
            for module in self.modules
            for imported in tree.imports[module]
            if (target := self._own(imported.module)) and self.subpackage(module) != self.subpackage(target)
        ]
        self.contents: dict[str, list[str]] = defaultdict(list)
        """The modules of each subpackage; a folder's `__init__` only if it imports modules of its package."""
        for module in self.modules:
            if not self._is_folder(module) or any(self._own(it.module) for it in tree.imports[module]):
                self.contents[self.subpackage(module)].append(module)

    def subpackage(self, module: str) -> str:
        """Return the subpackage of a module."""
        folder = module if self._is_folder(module) else module.rpartition(".")[0]
        if folder == self._package:
            return "__init__" if module == folder else module.rpartition(".")[2]
        return folder.removeprefix(f"{self._package}.")

    def sentence(self, subpackage: str) -> str:
        """Return the first paragraph of a subpackage's docstring, on one line."""
        module = self._package if subpackage == "__init__" else f"{self._package}.{subpackage}"
        text = ast.get_docstring(ast.parse(self._tree.files[module].read_text())) or ""
        return " ".join(text.partition("\n\n")[0].split())

    def label(self, subpackage: str) -> str:
        """Return the path of a subpackage in its package."""
        path = subpackage.replace(".", "/")
        module = f"{self._package}.{subpackage}"
        return f"{path}/" if module in self._tree.files and self._is_folder(module) else f"{path}.py"

    def graph(self) -> dict[str, set[str]]:
        """Return the imported subpackages of each subpackage."""
        found: dict[str, set[str]] = {subpackage: set() for subpackage in self.contents}
        for arrow in self.arrows:
            found[arrow.start].add(arrow.end)
        return found

    def module_graph(self) -> dict[str, set[str]]:
        """Return the modules of the package that each module imports at load time."""
        return {
            module: {
                target
                for imported in self._tree.imports[module]
                if imported.at_load and (target := self._own(imported.module)) and target != module
            }
            for module in self.modules
        }

    def _own(self, name: str) -> str | None:
        owner = self._tree.owner(name)
        return owner if owner and is_within(owner, self._package) else None

    def _is_folder(self, module: str) -> bool:
        return self._tree.files[module].name == "__init__.py"

    # --------------------------------------------------------------------- faults

    def unlisted(self, table: Layers) -> list[str]:
        """Return errors for subpackages that the table lacks, names of no subpackage, and duplicates."""
        listed = [subpackage for line in table for subpackage in line]
        return [
            *(
                f"{self._package}/{it} has no line in {TABLE.name}"
                for it in self.contents
                if it not in listed
            ),
            *(
                f"{TABLE.name} names {it}, which is no subpackage of {self._package}"
                for it in listed
                if it not in self.contents
            ),
            *(f"{TABLE.name} names {it} twice" for it in {*listed} if listed.count(it) > 1),
        ]

    def upward(self, table: Layers) -> list[str]:
        """Return errors for imports of the same layer or of a higher one."""
        depth = {subpackage: i for i, line in enumerate(table) for subpackage in line}
        found = []
        for module, target, line, start, end in self.arrows:
            if start in depth and end in depth and depth[end] <= depth[start]:
                where = "above" if depth[end] < depth[start] else "beside"
                found.append(f"{module} imports {target} in line {line}: {end} stands {where} {start}")
        return found

    def wrong_size(self) -> list[str]:
        """Return errors for folders with too many or too few modules."""
        found = []
        for folder in self._folders():
            inside = [m for m in self.modules if m.rpartition(".")[0] == folder]
            modules = [m for m in inside if not self._is_folder(m)]
            if len(modules) > MOST:
                found.append(f"{folder} has {len(modules)} modules, more than {MOST}")
            if len(inside) < LEAST:
                found.append(f"{folder} has {len(inside)} modules and folders, fewer than {LEAST}")
        return found

    def undescribed(self) -> list[str]:
        """Return errors for folders whose docstring does not begin with exactly one sentence."""
        found = []
        for module in self._folders():
            text = self.sentence(self.subpackage(module))
            if not text.endswith(".") or re.search(r"[.!?] [A-Z]", text):
                found.append(f"{module} does not say in one sentence what is in it: {text!r}")
        return found

    def _folders(self) -> list[str]:
        return [module for module in self.modules if self._is_folder(module)]


def cycle(graph: Mapping[str, Iterable[str]]) -> str:
    """Return a cycle of a graph as text, or an empty string."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return " imports ".join(reversed(error.args[1]))
    return ""
