"""The systemd units of `deploy/` as data."""

import re
import shlex
from pathlib import Path

from tests.deploy.files import DEPLOY

NAMES = ("adapter", "worker")


def unit_path(name: str) -> Path:
    """Return the unit of the adapter or the worker."""
    return DEPLOY / f"systemd/antiphon-{name}@.service"


def directives(path: Path) -> dict[str, list[str]]:
    """Return the values of each directive of the unit in order; sections are not told apart."""
    found: dict[str, list[str]] = {}
    for line in path.read_text().replace("\\\n", " ").splitlines():
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2].strip())
    return found


def command_of(path: Path, instance: str, variables: dict[str, str]) -> list[str]:
    """Return the words of ExecStart= as systemd starts an instance: unset variables are empty words."""
    [line] = directives(path)["ExecStart"]
    specifiers = {"i": instance, "H": "host.test", "%": "%"}
    line = re.sub(r"%(\w|%)", lambda match: specifiers[match[1]], line)
    return [
        re.sub(r"\$\{(\w+)\}", lambda match: variables.get(match[1], ""), word) for word in shlex.split(line)
    ]
