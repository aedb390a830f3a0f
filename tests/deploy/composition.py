"""The services of `deploy/compose` as data."""

from typing import Any

from tests.deploy.files import read_yaml

FOLDER = "compose"


def services() -> dict[str, dict[str, Any]]:
    """Return the services by their names."""
    return dict(read_yaml(f"{FOLDER}/compose.yaml")["services"])


def command_of(service: str) -> list[str]:
    """Return the words that start the adapter or the worker, each value as a word of its own."""
    words = [part for word in services()[service]["command"] for part in word.split("=", 1)]
    return ["antiphon", service.removeprefix("antiphon-"), *words]
