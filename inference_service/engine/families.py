"""The families of models that there is a runtime for, and how a folder's is told."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from inference_service import causal_checkpoint, checkpoint, voxtral_checkpoint
from inference_service.engine.causal_runtime import CausalRuntime, require_memory, require_packable
from inference_service.engine.duplex_runtime import DuplexRuntime
from inference_service.engine.runtime import Runtime
from inference_service.engine.voxtral_runtime import VoxtralRuntime
from inference_service.errors import ConfigurationError
from inference_service.models.causality import require_causal
from inference_service.models.config import ModelConfig

Build = Callable[[int], Runtime]
"""Makes a runtime with so many slots; the weights are loaded once."""


def load(
    folder: Path, device: torch.device, context_limit: int | None = None, dtype: str | None = None
) -> Build:
    """Loads the checkpoint in `folder`.

    Raises `CheckpointError` if it cannot be used, `ConfigurationError` if the settings do not suit it.
    """
    raw = checkpoint.read_json(folder, "config.json")
    kind = raw.get("model_type")
    is_ours = kind == voxtral_checkpoint.MODEL_TYPE or "duplex" in raw or kind is None
    if is_ours and dtype is not None:
        raise ConfigurationError(
            "dtype is for causal language models of transformers; leave it out for this model."
        )
    if kind == voxtral_checkpoint.MODEL_TYPE:
        return _voxtral(folder, device, context_limit)
    if is_ours:
        return _duplex(folder, device, context_limit)
    require_causal(raw)
    return _causal(folder, device, context_limit, dtype)


def _voxtral(folder: Path, device: torch.device, context_limit: int | None) -> Build:
    if context_limit is not None:
        raise ConfigurationError(
            "context_limit cannot be set for a Voxtral Realtime model: its context is the sliding window of "
            "its attention."
        )
    loaded = voxtral_checkpoint.load(folder, device)
    return lambda slots: VoxtralRuntime(loaded, slots)


def _duplex(folder: Path, device: torch.device, context_limit: int | None) -> Build:
    model, tokenizer, config = checkpoint.load(folder, device)
    if context_limit is not None:
        config = limited(config, context_limit)
    return lambda slots: DuplexRuntime(model, tokenizer, config, slots)


def _causal(folder: Path, device: torch.device, context_limit: int | None, dtype: str | None) -> Build:
    usual = "float32" if device.type == "cpu" else "bfloat16"
    loaded = causal_checkpoint.load(folder, device, getattr(torch, dtype or usual))
    limit = context_limit or loaded.context_limit
    if limit > loaded.context_limit:
        raise ConfigurationError(
            f"context_limit must be at most the model's {loaded.context_limit}, not {limit}."
        )
    require_packable(loaded)

    def build(slots: int) -> CausalRuntime:
        require_memory(loaded, limit, slots)
        return CausalRuntime(loaded, limit, slots)

    return build


def limited(config: ModelConfig, context_limit: int) -> ModelConfig:
    """`config` with a smaller context. Raises `ConfigurationError` if it would be a larger one."""
    if context_limit > config.context_limit:
        raise ConfigurationError(
            f"context_limit must be at most the model's {config.context_limit}, not {context_limit}."
        )
    return replace(
        config,
        context_limit=context_limit,
        window_high=min(config.window_high, context_limit),
        window_low=min(config.window_low, context_limit * 3 // 4),
    )
