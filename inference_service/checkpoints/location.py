"""The location of a checkpoint, which is found before heavy imports."""

import re
from pathlib import Path

from inference_service.models.errors import CheckpointError

SHIPPED = Path(__file__).parent
"""Checkpoints inside the package, found by name."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def is_hub_name(name_or_path: str) -> bool:
    """Return whether the name has the hub's form `owner/name`."""
    return _HUB_NAME.fullmatch(name_or_path) is not None


def find(name_or_path: str) -> Path:
    """Return the folder of a shipped checkpoint, of a path, or of a name on the hub. Raises
    `CheckpointError`.
    """
    folder = locate(name_or_path)
    if folder is None:
        from inference_service.checkpoints import hub  # only a name on the hub needs this slow import

        folder = hub.fetch(name_or_path)
    return folder


def locate(name_or_path: str) -> Path | None:
    """Return the folder of a shipped checkpoint or of a path; None for the hub's `owner/name`, which may
    not be downloaded yet.

    Raises `CheckpointError` for any other text.
    """
    shipped = {path.parent.name: path.parent for path in SHIPPED.glob("*/config.json")}
    if name_or_path in shipped:
        return shipped[name_or_path]
    folder = Path(name_or_path)
    if folder.is_dir():
        return folder
    if is_hub_name(name_or_path):
        return None
    known = ", ".join(sorted(shipped)) or "none"
    raise CheckpointError(
        f"There is no model {name_or_path!r}. Give a checkpoint folder or a shipped name ({known})."
    )
