"""Distributions of a clone, installed in empty environments of every supported Python."""

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.support.processes import serving
from tests.releases.environment import INSTALL_S, Environment
from tests.releases.interpreters import MINORS, interpreter
from tests.support.long import long
from tests.support.patience import PATIENCE_S, START_S

ROOT = Path(__file__).parents[2]

pytestmark = [long, pytest.mark.timeout(3 * INSTALL_S)]

_KERNELS = """
import importlib.util
print(importlib.util.find_spec("inference_service.kernels.native") is not None)
"""

_QUESTION = """
import pathlib, antiphon
print(pathlib.Path(antiphon.__file__).with_name("cli") / "question" / "abilities.wav")
"""


@dataclass(frozen=True)
class Distributions:
    """The distributions of a release."""

    sdist: Path
    wheel: Path
    pure: Path
    """The wheel without compiled kernels."""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Built from a clone, as `make dist` builds them; both wheels are built from the sdist."""
    folder = tmp_path_factory.mktemp("release")
    subprocess.run(["git", "clone", "--quiet", ROOT, folder / "source"], check=True, timeout=INSTALL_S)
    command = ["make", "--no-print-directory", "-C", folder / "source", "distributions"]
    variables = [f"PYTHON={sys.executable}", f"BUILDER={sys.executable}"]
    done = subprocess.run([*command, *variables], capture_output=True, text=True, timeout=INSTALL_S)
    assert done.returncode == 0, done.stdout + done.stderr
    dist = folder / "source" / "dist"
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*-cp311-abi3-*.whl")
    (pure,) = dist.glob("*-py3-none-any.whl")
    return Distributions(sdist, wheel, pure)


@pytest.fixture(params=MINORS, ids=lambda minor: f"python3.{minor}")
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Environment:
    """An empty environment of one Python."""
    python = interpreter(request.param)
    if python is None:
        pytest.skip(f"no Python 3.{request.param} with venv and ensurepip on this machine")
    return Environment(python, tmp_path)


def test_wheels_differ_in_the_compiled_kernels_alone(distributions: Distributions) -> None:
    full, pure = ({*zipfile.ZipFile(it).namelist()} for it in (distributions.wheel, distributions.pure))

    assert pure < full
    assert {Path(name).suffixes[0] for name in full - pure} == {".abi3"}
    assert {Path(name).name for name in pure if "/licenses/" in name} == {"LICENSE", "NOTICE"}
    with tarfile.open(distributions.sdist) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert {"setup.py", "LICENSE", "NOTICE", "inference_service/kernels/arguments.h"} <= packed


def test_base_install_has_the_command_and_names_what_the_demo_needs(
    distributions: Distributions, environment: Environment
) -> None:
    environment.install(distributions.pure)
    for distribution in (distributions.pure, distributions.wheel, distributions.sdist):
        environment.install(distribution, dependencies=False)
        told = environment.antiphon("--version", timeout_s=PATIENCE_S)
        assert told.returncode == 0, told.stderr
        assert (
            environment.python("import antiphon; print(antiphon.__version__)", PATIENCE_S).strip()
            in told.stdout
        )
        demo = environment.antiphon("demo", timeout_s=PATIENCE_S)
        assert demo.returncode == 2
        assert "pip install 'antiphon[all]'" in demo.stderr
    assert list(environment.home.iterdir()) == []


def test_client_of_each_python_converses(
    distributions: Distributions, environment: Environment, tmp_path: Path
) -> None:
    """With a server of this environment's Python, whose model answers every second."""
    environment.install(distributions.pure)
    question = environment.python(_QUESTION, PATIENCE_S).strip()
    folder = tmp_path / "serve"
    folder.mkdir()
    with serving(folder, "reply") as serve:
        options = ("--url", serve.address("WebSocket"), "--out", tmp_path / "answer.wav")
        done = environment.antiphon("talk", question, *options, timeout_s=START_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "answer.wav").is_file()


def test_demo_runs_in_an_empty_folder(distributions: Distributions, environment: Environment) -> None:
    """An index that offers only the CUDA build of PyTorch would have gigabytes downloaded for it."""
    added = environment.would_install(distributions.wheel, "all")
    if any(name.startswith("nvidia-") for name in added) and "TORCH_INDEX" not in os.environ:
        pytest.skip("the index offers only the CUDA build of PyTorch for this Python: set TORCH_INDEX")
    environment.install(distributions.wheel, "all")
    for distribution, has_kernels in ((distributions.wheel, "True"), (distributions.pure, "False")):
        environment.install(distribution, dependencies=False)
        assert environment.python(_KERNELS, PATIENCE_S).strip() == has_kernels
        done = environment.antiphon("demo", timeout_s=START_S + PATIENCE_S)
        verdict = done.stdout.strip().splitlines()[-1:]
        # A loaded machine may drop a unit of the question; the answer then differs, and was still spoken.
        assert verdict, done.stderr
        assert verdict[0].startswith(("PASS", 'FAIL: "')), done.stdout + done.stderr
        answer = environment.home / "answer.wav"
        assert [*environment.home.iterdir()] == [answer]
        answer.unlink()
