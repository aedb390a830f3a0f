"""The shipped images, built by whichever tool for containers works here, on bases by mmdebstrap."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy import containers
from tests.deploy.files import DEPLOY

TOOLS = ("docker", "podman", "buildah")
TAG = "test"
WITHOUT_USRMERGE = (
    'mkdir -p "$1/etc/apt/preferences.d" && '
    'printf "Package: usrmerge\\nPin: version *\\nPin-Priority: -1\\n" > "$1/etc/apt/preferences.d/merged"'
)
"""The usrmerge package brings 46 MB of Perl."""

MIRROR = "http://deb.debian.org/debian"
BUILD_S = 2400.0
"""Timeout of a build or of a base: both copy gigabytes."""


@dataclass
class Images:
    """Images of the tag `TAG`, and the tools that can start them."""

    tools: list[str]
    variables: dict[str, str] = field(default_factory=dict)

    def build(self, *names: str) -> None:
        """Build images as `make images` does; fails if that fails."""
        done = subprocess.run(
            [DEPLOY / "images/build.sh", *names],
            capture_output=True,
            text=True,
            timeout=len(names) * BUILD_S,
            env=os.environ | self.variables,
        )
        assert done.returncode == 0, (done.stdout, done.stderr)


def make_base(name: str, packages: str, tool: str, folder: Path, variables: Mapping[str, str]) -> None:
    """Make an image of Debian with mmdebstrap."""
    home = folder / name
    home.mkdir()
    words = ["mmdebstrap", "--variant=essential", f"--include=usr-is-merged,{packages}"]
    words += ["--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr", f"--setup-hook={WITHOUT_USRMERGE}"]
    words += [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "man", "locale", "info")]
    made = subprocess.run(
        [*words, "bookworm", home / "root.tar", MIRROR], capture_output=True, text=True, timeout=BUILD_S
    )
    assert made.returncode == 0, made.stderr
    (home / "Dockerfile").write_text("FROM scratch\nADD root.tar /\n")
    built = [tool, "build", "--format", "docker", "--tag", name, "--file", home / "Dockerfile", home]
    subprocess.run(built, check=True, capture_output=True, timeout=BUILD_S, env=os.environ | dict(variables))
    shutil.rmtree(home)


def prepare(folder: Path) -> Images | None:
    """Make the bases; None if no tool works here. All that podman and buildah keep is in `folder`."""
    variables = containers.private_storage(folder)
    tools = [tool for tool in TOOLS if containers.works(tool, variables)]
    if not tools:
        return None
    builder = tools[0]
    variables |= {"BUILDER_TOOL": builder, "TAG": TAG}
    if builder != "docker" and shutil.which("mmdebstrap"):
        make_base("antiphon-builder", "python3-dev,python3-venv,gcc,libc6-dev", builder, folder, variables)
        make_base("antiphon-base", "python3,libstdc++6", builder, folder, variables)
        variables |= {"BUILDER": "localhost/antiphon-builder", "BASE": "localhost/antiphon-base"}
    return Images([builder] if builder == "docker" else tools, variables)


def name_of(tool: str, image: str) -> str:
    """Return how a tool calls an image of ours."""
    return f"{'' if tool == 'docker' else 'localhost/'}antiphon-{image}:{TAG}"
