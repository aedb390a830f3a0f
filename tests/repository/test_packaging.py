"""Tests of the installed distribution: a light base, pins that fit together, files that ship."""

import re
import subprocess
import sys
import tomllib
from glob import glob
from pathlib import Path

import pytest

import antiphon
from antiphon_command.output.failure import REQUIRED
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = dict(re.findall(r"^([a-z0-9.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))

PACKAGES = (
    "clients/python/antiphon clients/python/antiphon_command antiphon_service antiphon_training "
    "ws_adapter inference_service"
).split()
HEAVY = set(
    "torch transformers tokenizers safetensors msgspec pybase64 soxr soundfile sounddevice cffi "
    "opentelemetry prometheus_client tornado threadpoolctl".split()
)
SERVICES = {"ws_adapter", "inference_service"}


def loaded_by(code: str) -> set[str]:
    """Top-level names of the modules that a fresh interpreter holds after running `code`."""
    report = "import sys; print(*{name.partition('.')[0] for name in sys.modules})"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "module", ["antiphon", "antiphon_command", "antiphon_command.command", "antiphon_service.semconv"]
)
def test_base_install_stays_light(module: str) -> None:
    assert loaded_by(f"import {module}") & (HEAVY | SERVICES) == set()


def test_no_module_of_the_sdk_needs_an_extra_to_load() -> None:
    walk = (
        "import importlib, pkgutil, antiphon\n"
        "for found in pkgutil.walk_packages(antiphon.__path__, 'antiphon.'):\n"
        "    importlib.import_module(found.name)"
    )
    assert loaded_by(walk) & (HEAVY | SERVICES | {"antiphon_service", "antiphon_command"}) == set()
    assert "msgspec" in loaded_by("import msgspec")


def requirements(*groups: str) -> dict[str, str]:
    """Name -> the rest of the line, for the base dependencies and the extras named."""
    lines = [*PROJECT["dependencies"], *(r for g in groups for r in PROJECT["optional-dependencies"][g])]
    split = (re.fullmatch(r"([A-Za-z0-9_.-]+)(.*)", line) for line in lines)
    return {m[1]: m[2] for m in split if m and m[1] != PROJECT["name"]}


@pytest.mark.parametrize("extra", ["adapter", "worker"])
def test_commands_ask_for_nothing_that_their_extra_does_not_bring(extra: str) -> None:
    brought = {name.lower() for name in requirements(extra, "telemetry")}
    for name in REQUIRED[extra].values():
        wanted = {"PyTorch": "torch", "OpenTelemetry": "opentelemetry-sdk"}.get(name, name).lower()
        assert wanted in brought, name


RUNTIME = "adapter worker telemetry minicpmo train redis vad audio mic image vllm".split()
"""The extras that users install; `dev` and `fuzz` follow constraints.txt alone."""


def test_runtime_requirements_all_have_an_upper_bound() -> None:
    unbounded = {name for name, rest in requirements(*RUNTIME).items() if not re.search(r",<\d", rest)}
    assert unbounded == set()
    assert re.fullmatch(r">=[\d.]+,<\d+", requirements("adapter")["websockets"]), "it is changed inside"


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed_and_imports_no_private_module_of_opentelemetry(package: str) -> None:
    private = re.compile(r"^\s*(?:from|import) opentelemetry(?:\.\w+)*\._", re.MULTILINE)
    found = [str(path) for path in (ROOT / package).rglob("*.py") if private.search(path.read_text())]
    assert found == []
    assert (ROOT / package / "py.typed").is_file()


def test_everything_that_make_install_installs_is_pinned() -> None:
    """`make vllm` has an environment of its own."""
    asked = requirements(*PROJECT["optional-dependencies"].keys() - {"vllm"})
    assert asked.keys() - PINS.keys() == set()


def test_generator_is_the_oldest_grpcio_and_protobuf_supported() -> None:
    """Generated code refuses a runtime older than its generator."""
    oldest, v1 = PINS["grpcio-tools"], ROOT / "clients/python/antiphon/v1"
    assert requirements("dev")["grpcio-tools"] == f"=={oldest}"
    for name, bounds in requirements("worker").items():
        if name.startswith("grpcio"):
            assert bounds.startswith(f">={oldest},"), name
    assert f"GRPC_GENERATED_VERSION = '{oldest}'" in (v1 / "inference_service_pb2_grpc.py").read_text()
    generated = (v1 / "common_pb2.py").read_text()
    major, minor = re.findall(r"Protobuf Python Version: (\d+)\.(\d+)", generated)[0]
    assert requirements()["protobuf"].startswith(f">={major}.{minor},")


def test_project_has_one_version_and_lists_its_urls() -> None:
    assert antiphon.__version__ == PROJECT["version"]
    assert PROJECT["urls"].keys() >= {"Documentation", "Source", "Issues", "Changelog"}
    assert all(address.startswith("https://") for address in PROJECT["urls"].values())


def test_protos_ship_as_links_not_copies() -> None:
    sources = {file.name: file for file in (ROOT / "protos/antiphon/v1").glob("*.proto")}
    shipped = {file.name: file for file in (ROOT / "clients/python/antiphon/v1").glob("*.proto")}
    assert shipped.keys() == sources.keys()
    for name, file in shipped.items():
        assert file.is_symlink(), name
        assert file.resolve() == sources[name], name


@pytest.mark.parametrize(
    ("package", "file"),
    [
        ("ws_adapter", "sounds/antiphon-mini.wav"),
        ("ws_adapter", "pages/app/index.html"),
        ("ws_adapter", "pages/app/client/duplex.js"),
        ("ws_adapter", "pages/app/questions/name.wav"),
        ("antiphon_service", "telemetry/look.css"),
        ("clients/python/antiphon_command", "question/abilities.wav"),
        ("antiphon_training", "stages/chat_template.jinja"),
        ("antiphon_training", "domains/lift.yaml"),
        ("inference_service", "checkpoints/antiphon-mini/config.json"),
    ],
)
def test_files_that_are_no_code_ship(package: str, file: str) -> None:
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    patterns = told[Path(package).name]
    assert any(file in glob(pattern, root_dir=ROOT / package, recursive=True) for pattern in patterns)
