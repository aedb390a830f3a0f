"""Checkpoint folders on disk: `config.json`, `model.safetensors`, `tokenizer.json`.

Never pickle, never remote code.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from inference_service.checkpoints import hub
from inference_service.checkpoints.location import locate
from inference_service.models.config import ModelConfig, parse_config
from inference_service.models.duplex import DuplexModel
from inference_service.models.errors import CheckpointError
from inference_service.models.tokenizer import Tokenizer


def find(name_or_path: str) -> Path:
    """The folder of a shipped checkpoint, of a path, or of a name on the hub; raises `CheckpointError`."""
    return locate(name_or_path) or hub.fetch(name_or_path)


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of the checkpoint."""
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
    """Every tensor of `model.safetensors`."""
    path = folder / "model.safetensors"
    if not path.is_file():
        raise CheckpointError(f"{folder} has no model.safetensors. Weights are read as safetensors only.")
    try:
        return load_file(path)
    except SafetensorError:
        raise CheckpointError(f"{path} is not a readable safetensors file.") from None


def fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Puts tensors into a module by name, in the module's own dtype; none may be missing or left over."""
    own = module.state_dict()
    given = {own[name].data_ptr() for name in tensors if name in own}
    # A tied tensor is stored once, under one of its names.
    missing = sorted(name for name in own if own[name].data_ptr() not in given)
    extra = sorted(set(tensors) - set(own))
    if missing:
        raise CheckpointError(
            f"model.safetensors lacks {len(missing)} tensors the architecture needs (first: {missing[0]}). "
            "Is this an Antiphon checkpoint?"
        )
    if extra:
        raise CheckpointError(
            f"model.safetensors has {len(extra)} tensors the architecture has no place for "
            f"(first: {extra[0]})."
        )
    wrong = [name for name, tensor in tensors.items() if tensor.shape != own[name].shape]
    if wrong:
        name = wrong[0]
        raise CheckpointError(
            f"{name} is {list(tensors[name].shape)}; config.json asks for {list(own[name].shape)}."
        )
    module.load_state_dict({k: v.to(own[k].dtype) for k, v in tensors.items()}, strict=False)


def load(folder: Path, device: torch.device) -> tuple[DuplexModel, Tokenizer, ModelConfig]:
    """A model ready to run in float32 on `device`, its tokenizer and its configuration."""
    config = parse_config(read_json(folder, "config.json"))
    tokenizer = Tokenizer.load(folder)
    if tokenizer.size > config.language.vocab_size:
        raise CheckpointError(
            f"tokenizer.json has {tokenizer.size} tokens; config.json's vocab_size is only "
            f"{config.language.vocab_size}."
        )
    model = DuplexModel(config)
    fill(model, read_tensors(folder))
    return model.to(device).eval(), tokenizer, config
