"""The table of model families with a runtime, and the lookup of a folder's family."""

from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

import torch

from inference_service.checkpoints.files import read_json
from inference_service.errors import ConfigurationError
from inference_service.families.family import Build, Family, Settings
from inference_service.families.memory.footprint import Footprint
from inference_service.families.shipped import CAUSAL, SHIPPED
from inference_service.models.causality import require_causal
from inference_service.options import USUAL_SPEECH, SpeechOptions

FAMILIES: Final = "antiphon.families"
"""Group of entry points by which packages add families of models."""


@cache
def families() -> tuple[Family, ...]:
    """Return all families in order of lookup: those of packages come before `CAUSAL`, which accepts every
    folder.

    Raises `ConfigurationError` if a package's entry point does not name a `Family`.
    """
    brought: list[Family] = []
    for entry in entry_points(group=FAMILIES):
        try:
            found = entry.load()
        except Exception as error:  # the import of a package may raise any error
            raise ConfigurationError(
                f"Cannot load the family {entry.name!r} of models from {entry.value} ({error}). Repair or "
                "remove the package that brings it."
            ) from error
        if not isinstance(found, Family):
            raise ConfigurationError(
                f"The entry point {entry.name!r} of {FAMILIES} names {entry.value}, which is no Family."
            )
        brought.append(found)
    return (*SHIPPED, *brought, CAUSAL)


def load(
    folder: Path,
    device: torch.device,
    context_limit: int | None = None,
    dtype: str | None = None,
    speech: SpeechOptions = USUAL_SPEECH,
    ear: str | None = None,
) -> Build:
    """Load the checkpoint in `folder`.

    Raises `CheckpointError` if it cannot be used, `ConfigurationError` for unsuitable settings.
    """
    settings = Settings(device, context_limit, dtype, speech, ear)
    family = family_of(folder)
    _require_meaning(settings, family)
    return family.load(folder, settings)


def footprint(
    folder: Path,
    device: torch.device,
    context_limit: int | None = None,
    dtype: str | None = None,
    speech: SpeechOptions = USUAL_SPEECH,
) -> Footprint:
    """Estimate the memory of `load` and its sessions without loading.

    Raises `CheckpointError`, or `FootprintUnknown`.
    """
    return family_of(folder).footprint(folder, Settings(device, context_limit, dtype, speech))


def family_of(folder: Path) -> Family:
    """Return the first family that matches a folder. Raises `CheckpointError` if there is none."""
    found = named_family(folder)
    if found is CAUSAL:
        require_causal(read_json(folder, "config.json"))
    return found


def named_family(folder: Path) -> Family:
    """Return the family that a folder names, or `CAUSAL`, which may be unable to serve it."""
    raw = read_json(folder, "config.json")
    return next(family for family in families() if family.matches(raw))


def _require_meaning(settings: Settings, family: Family) -> None:
    """Raise `ConfigurationError` for an option that only other families have."""
    for option in settings.given:
        if option not in family.takes:
            takers = " and for ".join(it.name for it in families() if option in it.takes)
            verb = "is" if " " not in option else "are"
            raise ConfigurationError(f"{option} {verb} for {takers}; leave it out for this model.")
