"""The Kubernetes objects of `deploy/` as data."""

from pathlib import Path
from typing import Any

import yaml

from tests.deploy.files import DEPLOY

APPS = ("antiphon-adapter", "antiphon-redis", "antiphon-worker")


BASE = DEPLOY / "kubernetes/base"


def objects() -> list[dict[str, Any]]:
    """Return every object of the base, which overlays build upon, as its files have them."""
    return _objects_in(BASE)


def _objects_in(folder: Path) -> list[dict[str, Any]]:
    """Return the objects of a kustomization that changes nothing in them."""
    resources = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    files = [name for name in resources if name.endswith(".yaml")]
    assert {*files, "kustomization.yaml"} == {file.name for file in folder.iterdir()}
    found = [each for file in files for each in yaml.safe_load_all((folder / file).read_text())]
    for name in resources:
        if name not in files:
            found += _objects_in((folder / name).resolve())
    return found


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind by their names."""
    found = [each for each in objects() if each["kind"] == kind]
    named = {each["metadata"]["name"]: each for each in found}
    assert len(named) == len(found)
    return named


def pod(app: str) -> dict[str, Any]:
    """Return the pod that a Deployment makes."""
    return dict(of_kind("Deployment")[app]["spec"]["template"]["spec"])


def container(app: str) -> dict[str, Any]:
    """Return the only container of that pod."""
    [only] = pod(app)["containers"]
    return dict(only)


def projected(app: str) -> dict[str, tuple[str, str]]:
    """Return the files below the pod's mount of secrets: path -> name of Secret or ConfigMap, key."""
    [volume] = [each for each in pod(app)["volumes"] if each["name"] == "files"]
    [mount] = [each for each in container(app)["volumeMounts"] if each["name"] == "files"]
    files = {}
    for source in volume["projected"]["sources"]:
        [part] = source.values()
        files |= {
            f"{mount['mountPath']}/{item['path']}": (part["name"], item["key"]) for item in part["items"]
        }
    return files


def command_of(app: str, variables: dict[str, str]) -> list[str]:
    """Return the words that start the container, with `$(NAME)` as the kubelet expands it."""
    only = container(app)
    words = [*only.get("command", []), *only["args"]]
    for name, value in variables.items():
        words = [word.replace(f"$({name})", value) for word in words]
    return [part for word in words for part in word.split("=", 1)] if "command" in only else words
