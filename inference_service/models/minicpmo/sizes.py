"""Memory of a MiniCPM-o model, computed from its configuration only."""

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from inference_service.models.minicpmo.audio import CAPACITY
from inference_service.models.minicpmo.config import MiniCPMOConfig
from inference_service.models.minicpmo.model import MiniCPMO

_PARTS = {
    "llm": "language model",
    "vpm": "eye",
    "resampler": "eye",
    "apm": "ear",
    "audio_projection_layer": "ear",
    "tts": "speech head",
}


@dataclass(frozen=True)
class Sizes:
    """Bytes on the device: of the weights, by part, and of each session, by kind of state."""

    weights: dict[str, int]
    session: dict[str, int]


def sizes(
    config: MiniCPMOConfig,
    dtype: torch.dtype,
    *,
    context_entries: int,
    speech_entries: int,
    speech: bool = True,
) -> Sizes:
    """Return sizes with caches of these entries for the language model and for the speech head."""
    weights = dict.fromkeys(_PARTS.values() if speech else list(_PARTS.values())[:-1], 0)
    for name, parameter in MiniCPMO.hollow(config, speech=speech).named_parameters():
        weights[_PARTS[name.split(".")[0]]] += parameter.numel() * dtype.itemsize
    session = {
        "context": context_entries * _entry(config.language, dtype),
        "ear": 2 * config.audio.layers * config.audio.width * CAPACITY * dtype.itemsize,
    }
    if speech:
        session["speech head"] = speech_entries * _entry(config.speech.backbone, dtype)
    return Sizes(weights, session)


def _entry(config: PretrainedConfig, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values of one position in all layers."""
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(config.num_hidden_layers * config.num_key_value_heads * head) * dtype.itemsize
