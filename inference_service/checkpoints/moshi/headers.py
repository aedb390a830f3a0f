"""Names and shapes of tensors, compared with those of an architecture before any weight is read."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import MoshiConfig, MoshiForConditionalGeneration

from inference_service.models.errors import CheckpointError

Shapes: TypeAlias = Mapping[str, list[int]]
"""Shapes of tensors by name."""


def shapes_of(path: Path) -> dict[str, list[int]]:
    """Return the shapes of a safetensors file by name, from its header only. Raises `CheckpointError`."""
    if not path.is_file():
        raise CheckpointError(f"{path.parent} has no {path.name}. Download the whole folder.")
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        raise CheckpointError(f"{path} is not a readable safetensors file.") from None


def without_weights(config: MoshiConfig) -> MoshiForConditionalGeneration:
    """Return the network of an architecture on the meta device, which takes no memory."""
    with torch.device("meta"):
        return MoshiForConditionalGeneration(config)


def require(path: Path, wanted: Mapping[str, Tensor], found: Shapes) -> None:
    """Raise `CheckpointError`, which names the file, unless it holds the tensors `wanted` in their shapes."""
    if missing := wanted.keys() - found.keys():
        raise CheckpointError(f"{path} lacks {len(missing)} tensors, first {min(missing)}.")
    for name, tensor in wanted.items():
        if found[name] != [*tensor.shape]:
            raise CheckpointError(f"{path}: {name} has the shape {found[name]}, not {[*tensor.shape]}.")


def refuse_others(path: Path, wanted: Iterable[str], found: Iterable[str]) -> None:
    """Raise `CheckpointError`, which names the file, if it holds tensors other than those `wanted`."""
    if left := {*found} - {*wanted}:
        raise CheckpointError(f"{path} has {len(left)} tensors without a place, first {min(left)}.")


def line(error: Exception) -> str:
    """Return an exception's message in one line of at most 300 characters."""
    return " ".join(str(error).split())[:300]
