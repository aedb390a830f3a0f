"""The folders that the suite runs with: a tiny one of each family, and one that is named by the environment.

`ANTIPHON_FAMILY_FOLDER=FOLDER` adds a folder: how a package tests the family that it brings.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.inference_service.engine.support import tiny, tiny_causal, tiny_moshi, tiny_voxtral
from tests.inference_service.models.minicpmo import whole

FOLDER: Final = "ANTIPHON_FAMILY_FOLDER"


def _mini(folder: Path) -> Path:
    tiny.save(folder, sees=True)
    return folder


SUBJECTS: Final[dict[str, Callable[[Path], Path]]] = {
    "antiphon-mini": _mini,
    "MiniCPM-o": whole.write,
    "Voxtral Realtime": tiny_voxtral.save,
    "Moshi": tiny_moshi.save,
    "PersonaPlex": lambda folder: tiny_moshi.publish(folder, personaplex=True),
    "causal": tiny_causal.save,
}
"""By name, what writes a folder and returns it."""


def names() -> list[str]:
    """Return the names of all subjects."""
    return [*SUBJECTS, *([FOLDER] if FOLDER in os.environ else [])]


def write(name: str, folder: Path) -> Path:
    """Write the folder of a subject, or return that of the environment."""
    return Path(os.environ[FOLDER]) if name == FOLDER else SUBJECTS[name](folder)
