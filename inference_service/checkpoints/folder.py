"""Checkpoint folders on disk: `config.json`, `model.safetensors`, `tokenizer.json`.

Never pickle, never remote code.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from inference_service.checkpoints.files import read_json, read_tensors
from inference_service.kernels.packed_linear import pack_linears
from inference_service.models.config import ModelConfig, parse_config
from inference_service.models.duplex import DuplexModel
from inference_service.models.errors import CheckpointError
from inference_service.models.tokenizer import Tokenizer


def fill(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy tensors into a module by name, in the module's own dtype.

    Raises `CheckpointError` if a tensor is missing, left over, or of another shape.
    """
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


def load_duplex(folder: Path, device: torch.device) -> tuple[DuplexModel, Tokenizer, ModelConfig]:
    """Return a model ready to run in float32 on `device`, its tokenizer and its configuration.

    Raises `CheckpointError`.
    """
    config = parse_config(read_json(folder, "config.json"))
    tokenizer = Tokenizer.load(folder)
    if tokenizer.size > config.language.vocab_size:
        raise CheckpointError(
            f"tokenizer.json has {tokenizer.size} tokens; config.json's vocab_size is only "
            f"{config.language.vocab_size}."
        )
    model = DuplexModel(config)
    fill(model, read_tensors(folder))
    return pack_linears(model.to(device).eval()), tokenizer, config
