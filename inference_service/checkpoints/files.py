"""Common files of checkpoint folders: JSON objects and tensors, read without importing a model."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from inference_service.models.errors import CheckpointError


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the JSON object in the file `name` of a checkpoint. Raises `CheckpointError`."""
    try:
        data = json.loads((folder / name).read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no {name}. Is this an Antiphon checkpoint?") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise CheckpointError(f"{folder / name} is not valid JSON.") from None
    if not isinstance(data, dict):
        raise CheckpointError(f"{folder / name} does not hold a JSON object.")
    return data


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """Return every tensor of `model.safetensors`, by name, on the CPU. Raises `CheckpointError`."""
    path = folder / "model.safetensors"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no model.safetensors. Weights are read as safetensors only.")
    try:
        return load_file(path)
    except SafetensorError:
        raise CheckpointError(f"{path} is not a readable safetensors file.") from None
