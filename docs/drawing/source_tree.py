"""The imports between modules, read from the source.

Every import in a file counts: also inside a function, under `TYPE_CHECKING`, or as a literal argument of
`import_module`. For an f-string argument, the package at its beginning counts.
"""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = {
    "antiphon_command": ROOT / "clients/python/antiphon_command",
    "antiphon_training": ROOT / "antiphon_training",
    "ws_adapter": ROOT / "ws_adapter",
    "inference_service": ROOT / "inference_service",
    "antiphon_service": ROOT / "antiphon_service",
    "antiphon": ROOT / "clients/python/antiphon",
    "benchmarks": ROOT / "benchmarks",
}


@dataclass(frozen=True)
class Import:
    """One module named by an import; `from a import b` names `a.b`, which may be a module or an attribute."""

    module: str
    line: int
    at_load: bool
    """Whether loading the file runs the import: not in a function, not under TYPE_CHECKING."""


def imports_of(source: str, module: str, *, is_package: bool = False) -> list[Import]:
    """Return every import in `source`, the text of `module`; relative ones are resolved."""
    found: list[Import] = []
    package = module.split(".") if is_package else module.split(".")[:-1]

    def visit(node: ast.AST, at_load: bool) -> None:
        match node:
            case ast.Import(names=names):
                found.extend(Import(alias.name, node.lineno, at_load) for alias in names)
            case ast.ImportFrom(names=names):
                base = package[: len(package) - node.level + 1] if node.level else []
                stem = ".".join([*base, *([node.module] if node.module else [])])
                found.extend(
                    Import(stem if alias.name == "*" else f"{stem}.{alias.name}", node.lineno, at_load)
                    for alias in names
                )
            case ast.Call(args=[argument, *_]) if _is_import_call(node.func):
                found.extend(Import(name, node.lineno, at_load) for name in _named(argument))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                at_load = False
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                for statement in node.body:
                    visit(statement, False)
                for statement in node.orelse:
                    visit(statement, at_load)
                return
        for child in ast.iter_child_nodes(node):
            visit(child, at_load)

    visit(ast.parse(source), True)
    return found


def _is_import_call(function: ast.expr) -> bool:
    return ast.unparse(function).split(".")[-1] in {"import_module", "__import__"}


def _named(argument: ast.expr) -> list[str]:
    """Return the module that an import call names, or the package at the beginning of its name."""
    match argument:
        case ast.Constant(value=str(name)):
            return [name]
        case ast.JoinedStr(values=[ast.Constant(value=str(begin)), *_]) if "." in begin:
            return [begin.rpartition(".")[0]]
    return []


def is_within(module: str, prefix: str) -> bool:
    """Return whether `module` is `prefix` or inside it."""
    return module == prefix or module.startswith(prefix + ".")


class SourceTree:
    """The modules of some packages and what each imports. `packages` maps import names to folders."""

    def __init__(self, packages: dict[str, Path]) -> None:
        self.imports: dict[str, list[Import]] = {}
        self.files: dict[str, Path] = {}
        for package, folder in packages.items():
            for file in sorted(folder.rglob("*.py")):
                parts = [package, *file.relative_to(folder).with_suffix("").parts]
                is_package = parts[-1] == "__init__"
                module = ".".join(parts[:-1] if is_package else parts)
                self.files[module] = file
                self.imports[module] = imports_of(file.read_text(), module, is_package=is_package)

    def modules(self, prefixes: tuple[str, ...]) -> list[str]:
        """Return the modules within `prefixes`."""
        return [m for m in self.imports if any(is_within(m, prefix) for prefix in prefixes)]

    def owner(self, name: str) -> str | None:
        """Return the module of this tree that `name` is, or is an attribute of; None if there is none."""
        parent = name.rpartition(".")[0]
        return name if name in self.imports else parent if parent in self.imports else None


@cache
def repository() -> SourceTree:
    """Return the source tree of all packages of this repository."""
    return SourceTree(PACKAGES)
