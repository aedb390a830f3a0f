"""The import rules of the architecture: the libraries and packages that a package must not import.

`docs/drawing/layers.toml` orders imports inside a package. A `deep` rule also follows the imports of our own
modules, so that a forbidden module cannot come in through a neighbour.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs.drawing.source_tree import PACKAGES, Import, SourceTree, imports_of, is_within

SERVICES = ("ws_adapter", "inference_service")
OUR_SERVERS = (*SERVICES, "antiphon_service", "antiphon_command", "antiphon_training")
ABOVE_SERVICES = (*SERVICES, "antiphon_command", "antiphon_training")
SHIPPED = {name: PACKAGES[name] for name in ("antiphon", *OUR_SERVERS)}


@dataclass(frozen=True)
class ImportRule:
    """No file of `sources` may import anything of `forbidden`."""

    name: str
    sources: tuple[str, ...]
    forbidden: tuple[str, ...]
    deep: bool = False


TORCH = ("torch",)
RULES = [
    ImportRule(
        "the adapter imports neither worker nor torch", ("ws_adapter",), ("inference_service", *TORCH)
    ),
    ImportRule("the worker does not import the adapter", ("inference_service",), ("ws_adapter",)),
    ImportRule("the SDK imports nothing of servers", ("antiphon",), OUR_SERVERS),
    ImportRule("the service library imports no service", ("antiphon_service",), ABOVE_SERVICES),
    ImportRule("services import no command or training", SERVICES, ("antiphon_command", "antiphon_training")),
    ImportRule(
        "training imports no command or adapter", ("antiphon_training",), ("antiphon_command", "ws_adapter")
    ),
    ImportRule(
        "protocols have no I/O, no threads, no clock and no pixels",
        ("ws_adapter.protocol",),
        ("asyncio", "socket", "grpc", "threading", "concurrent", "time", "datetime", "PIL", "random"),
        deep=True,
    ),
    ImportRule("scheduler needs no torch", ("inference_service.engine.batch.scheduler",), TORCH, deep=True),
    ImportRule("sessions need no torch", ("inference_service.session.machine",), TORCH, deep=True),
    ImportRule(
        "models import neither gRPC nor JSON",
        ("inference_service.models",),
        ("grpc", "google", "antiphon", "json", "msgspec"),
    ),
    ImportRule(
        "telemetry imports no service",
        ("antiphon_service.telemetry",),
        ("ws_adapter", "inference_service", "torch", "grpc"),
        deep=True,
    ),
    ImportRule(
        "the log's format and the names need no library",
        ("antiphon_service.telemetry.logs", "antiphon_service.semconv"),
        ("opentelemetry", "prometheus_client"),
        deep=True,
    ),
    ImportRule(
        "packages import neither tests nor benchmarks",
        tuple(SHIPPED),
        ("tests", "benchmarks", "clients", "docs", "conftest", "pytest"),
    ),
]


def violations(tree: SourceTree, rule: ImportRule) -> list[str]:
    """One line for each forbidden import, with the way to it."""
    return [
        f"{' -> '.join(way)} imports {imported.module} in line {imported.line}"
        for module in tree.modules(rule.sources)
        for imported, way in reached(tree, module, rule.deep)
        if any(is_within(imported.module, name) for name in rule.forbidden)
    ]


def reached(tree: SourceTree, module: str, deep: bool) -> Iterator[tuple[Import, tuple[str, ...]]]:
    """Yield the imports of a module; if `deep`, also their own imports at load; each with the way to it."""
    seen = {module}
    queue: list[tuple[str, ...]] = [(module,)]
    while queue:
        way = queue.pop(0)
        for imported in tree.imports[way[-1]]:
            if len(way) == 1 or imported.at_load:
                yield imported, way
            target = tree.owner(imported.module)
            if deep and imported.at_load and target and target not in seen:
                seen.add(target)
                queue.append((*way, target))


@pytest.fixture(scope="module")
def tree() -> SourceTree:
    return SourceTree(SHIPPED)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_import_rule_is_kept(tree: SourceTree, rule: ImportRule) -> None:
    for source in rule.sources:
        assert tree.modules((source,)), f"no such module: {source}. Has it moved? Then move its rule too"
    assert violations(tree, rule) == []


def meeting_points(tree: SourceTree, shared: str, *services: str) -> set[str]:
    """The modules of package `shared` that every one of `services` imports."""
    used = [
        {tree.owner(imported.module) for m in tree.modules((service,)) for imported in tree.imports[m]}
        for service in services
    ]
    return {module for module in set.intersection(*used) if module and is_within(module, shared)}


def test_services_meet_only_in_the_contract_of_the_sdk(tree: SourceTree) -> None:
    """All else that both need is in `antiphon_service`."""
    met = meeting_points(tree, "antiphon", *SERVICES)
    assert {m for m in met if not is_within(m, "antiphon.v1")} == {"antiphon.contract"}


def strangers(imports: list[Import], generated: set[str]) -> list[Import]:
    """Imports of modules named as in `generated`, but not as part of `antiphon.v1`."""
    return [
        i for i in imports if generated & set(i.module.split(".")) and not is_within(i.module, "antiphon.v1")
    ]


def test_generated_code_is_imported_only_as_antiphon_v1(tree: SourceTree) -> None:
    generated = {file.stem for file in (PACKAGES["antiphon"] / "v1").glob("*_pb2*.py")}
    assert generated
    for module, imports in tree.imports.items():
        assert strangers(imports, generated) == [], tree.files[module]
        outside = [i for i in imports if is_within(i.module, "clients") or is_within(i.module, "protos")]
        assert outside == [], tree.files[module]


WEBSOCKETS_OUTSIDE = (
    "websockets.asyncio.server",
    "websockets.datastructures.Headers",
    "websockets.exceptions",
    "websockets.http11.Request",
    "websockets.http11.Response",
    "websockets.typing",
)
WEBSOCKETS_OWNER = "ws_adapter.web.websocket"


def test_the_inside_of_websockets_is_the_affair_of_its_owner(tree: SourceTree) -> None:
    assert any(is_within(imported.module, "websockets") for imported in tree.imports[WEBSOCKETS_OWNER])
    for module in tree.modules(("ws_adapter",)):
        used = [i.module for i in tree.imports[module] if is_within(i.module, "websockets")]
        inner = [name for name in used if not any(is_within(name, outer) for outer in WEBSOCKETS_OUTSIDE)]
        assert module == WEBSOCKETS_OWNER or inner == [], module


def scripted_names(source: str) -> list[str]:
    """Classes and functions of `source` that call themselves scripted, fake, dummy or mock."""
    words = ("scripted", "fake", "dummy", "mock")
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and any(word in node.name.lower() for word in words)
    ]


def test_transports_are_written_to_by_write_alone_and_scripted_models_live_under_tests(
    tree: SourceTree,
) -> None:
    """`writelines` of some versions of Python never says that its buffer is full."""
    texts = {module: file.read_text() for module, file in tree.files.items()}
    assert [module for module, text in texts.items() if ".writelines(" in text] == []
    assert [module for module, text in texts.items() if scripted_names(text)] == []


# Tests of the checker, on sources that break the rules.

TORCHLESS = ImportRule("no torch", ("box.pure",), ("torch",))


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import torch", 1),
        ("import torch.nn as nn", 1),
        ("from torch import nn", 1),
        ("from torch.nn.functional import *", 1),
        ("import os, torch", 1),
        ("def late():\n    import torch", 1),
        ("try:\n    import torch\nexcept ImportError:\n    torch = None", 1),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", 1),
        ("import importlib\ntorch = importlib.import_module('torch')", 1),
        ("torch = __import__('torch.nn')", 1),
        ("from importlib import import_module\nimport_module(f'torch.{__name__}')", 1),
        ("import torchvision", 0),
        ("from . import torch", 0),
        ("'import torch'", 0),
        ("# torch", 0),
    ],
)
def test_checker_sees_every_form_of_import_alone(tmp_path: Path, source: str, count: int) -> None:
    (tmp_path / "pure.py").write_text(source)
    assert len(violations(SourceTree({"box": tmp_path}), TORCHLESS)) == count


@pytest.mark.parametrize(
    ("source", "module", "is_package", "expected"),
    [
        ("from . import b", "box.a", False, "box.b"),
        ("from .b import C", "box.a", False, "box.b.C"),
        ("from ..d import C", "box.inner.a", False, "box.d.C"),
        ("from . import b", "box.inner", True, "box.inner.b"),
        ("from .. import d", "box.inner", True, "box.d"),
    ],
)
def test_checker_resolves_relative_imports(source: str, module: str, is_package: bool, expected: str) -> None:
    assert [i.module for i in imports_of(source, module, is_package=is_package)] == [expected]


def test_deep_rule_looks_behind_a_neighbour_at_what_loading_runs(tmp_path: Path) -> None:
    (tmp_path / "pure.py").write_text("from . import middle")
    (tmp_path / "middle.py").write_text("from box.heavy import load")
    (tmp_path / "heavy.py").write_text("import torch\ndef load(): ...")
    deep = ImportRule("no torch", ("box.pure",), TORCH, deep=True)
    assert violations(SourceTree({"box": tmp_path}), TORCHLESS) == []
    assert violations(SourceTree({"box": tmp_path}), deep) == [
        "box.pure -> box.middle -> box.heavy imports torch in line 1"
    ]
    (tmp_path / "heavy.py").write_text("def late():\n    import torch")
    assert violations(SourceTree({"box": tmp_path}), deep) == []


def test_checker_sees_where_two_services_meet(tmp_path: Path) -> None:
    packages = {name: tmp_path / name for name in ("left", "right", "both")}
    for folder in packages.values():
        folder.mkdir()
    (packages["both"] / "place.py").write_text("A = B = 1")
    (packages["both"] / "other.py").write_text("C = 1")
    (packages["left"] / "one.py").write_text("from both.place import A\nimport both.other")
    (packages["right"] / "two.py").write_text("from both import place")
    assert meeting_points(SourceTree(packages), "both", "left", "right") == {"both.place"}


def test_checker_sees_generated_code_under_another_name() -> None:
    good = imports_of("from antiphon.v1 import common_pb2", "box.a")
    bad = imports_of("import common_pb2\nfrom box.v1.common_pb2 import Image", "box.a")
    assert strangers(good, {"common_pb2"}) == []
    assert strangers(bad, {"common_pb2"}) == bad


def test_checker_sees_scripted_models() -> None:
    source = "class ScriptedModel: ...\ndef make_fake(): ...\nclass Engine: ..."
    assert scripted_names(source) == ["ScriptedModel", "make_fake"]
