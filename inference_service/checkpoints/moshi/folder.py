"""Folders of Moshi and PersonaPlex, as Kyutai and NVIDIA publish them and as transformers saves them.

Headers, tokenizer and voices are checked before the weights are read. Never pickle, never remote code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from transformers import MoshiConfig

from inference_service.checkpoints.files import read_json
from inference_service.checkpoints.hub import model_name
from inference_service.checkpoints.moshi.headers import without_weights
from inference_service.checkpoints.moshi.kyutai import LANGUAGE
from inference_service.checkpoints.moshi.published import MOSHI, PERSONAPLEX, Published
from inference_service.checkpoints.moshi.saved import Saved
from inference_service.checkpoints.moshi.tokenizer import MoshiTokenizer
from inference_service.checkpoints.moshi.voices import VoicePrompt, read_voices
from inference_service.kernels.packed_linear import pack_linears
from inference_service.models.errors import CheckpointError
from inference_service.models.moshi.model import MoshiModel, SilentTokens

_PAD_ENDS: Final = 0


@dataclass(frozen=True)
class MoshiCheckpoint:
    """A model ready to run, with its tokenizer and voices."""

    name: str
    model: MoshiModel
    tokenizer: MoshiTokenizer
    voices: Mapping[str, VoicePrompt] = field(default_factory=dict)
    """Voices by name; empty for Moshi, which has one voice and reads no prompts."""

    @property
    def reads_prompts(self) -> bool:
        """Whether a voice and a text describe the model's role."""
        return bool(self.voices)


def is_moshi(config: Mapping[str, Any]) -> bool:
    """Return whether a folder with this `config.json` holds a model of Moshi's architecture."""
    return config.get("model_type") in (MOSHI, PERSONAPLEX) or "depformer_dim" in config


def load(folder: Path, device: torch.device, dtype: torch.dtype) -> MoshiCheckpoint:
    """Return the checkpoint in `folder`; its codec computes in float32. Raises `CheckpointError`."""
    raw = read_json(folder, "config.json")
    files = _files(folder, raw)
    config = files.config
    words = SilentTokens(int({**LANGUAGE, **raw}["existing_text_padding_id"]), _PAD_ENDS)
    tokenizer = files.tokenizer(words.silent)
    if tokenizer.size - config.vocab_size not in (0, 1):  # some tokenizers include the initial text token
        raise CheckpointError(
            f"{files.tokenizer_path} has {tokenizer.size} tokens; the model has {config.vocab_size}."
        )
    voices: Mapping[str, VoicePrompt] = {}
    if raw.get("model_type") == PERSONAPLEX:
        most = max(config.vocab_size, config.audio_vocab_size)
        voices = read_voices(folder, config.hidden_size, 1 + 2 * config.num_codebooks, most)
    model = MoshiModel(files.network(dtype).to(device), words)
    return MoshiCheckpoint(model_name(folder), pack_linears(model.eval()), tokenizer, voices)


def read_config(folder: Path) -> MoshiConfig:
    """Return the architecture of the model in `folder`, without loading it. Raises `CheckpointError`."""
    return _files(folder, read_json(folder, "config.json")).config


def weight_bytes(config: MoshiConfig, dtype: torch.dtype) -> dict[str, int]:
    """Return the bytes of the weights of a model once they are loaded, by part."""
    sizes = {
        name: sum(it.numel() for it in part.parameters()) + sum(it.numel() for it in part.buffers())
        for name, part in without_weights(config).named_children()
    }
    return {name: size * (4 if name == "audio_encoder" else dtype.itemsize) for name, size in sizes.items()}


def _files(folder: Path, raw: Mapping[str, Any]) -> Published | Saved:
    is_saved = "depth_decoder_config" in raw or "audio_encoder_config" in raw
    return Saved(folder, raw) if is_saved else Published(folder, raw)
