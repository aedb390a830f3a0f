"""The locks and Dockerfiles of the images say the same as pyproject.toml and constraints.txt, and no more."""

import importlib.util
import re
import tomllib
from types import ModuleType

import pytest

from tests.deploy.files import DEPLOY, ROOT

IMAGES = DEPLOY / "images"
LOCKS = {
    "adapter": ("adapter", "redis", "vad"),
    "worker-cpu": ("worker", "redis"),
    "worker-cuda": ("worker", "redis", "minicpmo"),
}
"""Each image and the extras that it installs."""

DOCKERFILES = ("adapter.Dockerfile", "worker.Dockerfile")
ENTRY = re.compile(r"([a-z0-9.-]+)(===?)([\w.+!-]+) \\\n((?: {4}--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)")


def pins(lock: str) -> dict[str, str]:
    """Return name -> version of everything that a lock names."""
    return {match[1]: match[3] for match in ENTRY.finditer((IMAGES / f"{lock}.txt").read_text())}


def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def extras(*names: str) -> set[str]:
    """Return what the base and these extras ask for, and the extras of ours that they name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = list(project["dependencies"])
    for name in names:
        lines += project["optional-dependencies"][name]
    found = set()
    for line in lines:
        if inner := re.fullmatch(r"antiphon\[(.+)\]", line):
            found |= extras(*inner[1].split(","))
        else:
            found.add(re.split(r"[^A-Za-z0-9.-]", line)[0].lower())
    return found


@pytest.mark.parametrize("lock", [*LOCKS, "build"])
def test_lock_has_pins_with_hashes_alone_of_the_versions_that_are_developed_with(lock: str) -> None:
    text, known = (IMAGES / f"{lock}.txt").read_text(), constraints()
    assert "".join(match[0] for match in ENTRY.finditer(text)) == text
    assert pins(lock)
    for name, version in pins(lock).items():
        if name in known:
            assert version.partition("+")[0] == known[name], name


def test_locks_have_everything_that_their_extras_ask_for_and_the_pytorch_of_their_devices() -> None:
    for lock, names in LOCKS.items():
        assert extras(*names) - pins(lock).keys() == set(), lock
    assert not {"torch", "transformers", "triton"} & pins("adapter").keys()
    assert pins("worker-cpu")["torch"].endswith("+cpu")
    assert not [name for name in pins("worker-cpu") if name.startswith("nvidia-")]
    assert {"nvidia-cublas", "triton"} <= pins("worker-cuda").keys()


def test_files_of_images_name_no_index() -> None:
    for file in [*(it for it in IMAGES.iterdir() if it.is_file()), ROOT / ".dockerignore"]:
        assert "://" not in file.read_text().replace("http://127.0.0.1", ""), file.name


@pytest.mark.parametrize("name", DOCKERFILES)
def test_image_has_the_licence_files_of_the_package_and_runs_as_a_user_with_a_health_check(name: str) -> None:
    text, sent = (IMAGES / name).read_text(), (ROOT / ".dockerignore").read_text().splitlines()
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    [copied] = re.findall(r"^COPY (pyproject.toml .+) ./$", text, re.MULTILINE)
    assert {*named} < {*copied.split()}
    assert {f"!{each}" for each in copied.split()} <= {*sent}
    final = text[text.rindex("\nFROM ") :]
    assert re.search(r"^USER 10001:10001$", final, re.MULTILINE)
    assert re.search(r"^HEALTHCHECK ", final, re.MULTILINE)
    assert re.search(r"^STOPSIGNAL SIGTERM$", final, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["antiphon", "(adapter|worker)"\]$', final, re.MULTILINE)
    assert not re.search(r"^(ADD|VOLUME|SHELL) ", text, re.MULTILINE)
    assert not re.search(r"\b(apt-get|curl|wget)\b", text)


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sbom", IMAGES / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


STATUS = """Package: base-files
Status: install ok installed
Architecture: amd64
Version: 12.4+deb12u15
Description: miscellaneous
 Status: of a description

Package: gone
Status: deinstall ok config-files
Architecture: all
Version: 1
"""


def test_bill_lists_installed_debian_packages_alone(sbom: ModuleType) -> None:
    [found] = sbom.debian_packages(STATUS)
    purl = "pkg:deb/debian/base-files@12.4%2Bdeb12u15?arch=amd64"
    about = {"type": "library", "name": "base-files", "version": "12.4+deb12u15"}
    assert found == {**about, "bom-ref": purl, "purl": purl}


def test_bill_lists_python_packages_once_and_in_order(sbom: ModuleType) -> None:
    document = sbom.bill("antiphon-adapter", [*sbom.python_packages()])
    purls = [each["purl"] for each in document["components"]]
    assert purls == sorted(purls)
    assert "pkg:pypi/numpy@" in " ".join(purls)
    assert document["metadata"]["component"]["name"] == "antiphon-adapter"
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
