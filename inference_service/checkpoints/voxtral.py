"""Voxtral Realtime checkpoints on disk.

`config.json`, `*.safetensors`, `processor_config.json` or `preprocessor_config.json`, and `tekken.json`.
Never pickle, never remote code.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import VoxtralRealtimeFeatureExtractor, VoxtralRealtimeForConditionalGeneration

from inference_service.checkpoints.files import read_json
from inference_service.checkpoints.hub import model_name
from inference_service.kernels.packed_linear import pack_linears
from inference_service.models.errors import CheckpointError
from inference_service.models.tekken import Tekken
from inference_service.models.voxtral import VoxtralModel, parse_pacing

MODEL_TYPE = "voxtral_realtime"


@dataclass(frozen=True)
class VoxtralCheckpoint:
    """A model ready to run, with its features and its tokens."""

    name: str
    model: VoxtralModel
    features: VoxtralRealtimeFeatureExtractor
    tekken: Tekken


def load(folder: Path, device: torch.device) -> VoxtralCheckpoint:
    """Return the checkpoint in `folder`, float32 on a CPU and bfloat16 elsewhere. Raises
    `CheckpointError`."""
    raw = read_json(folder, "tekken.json")
    tekken = Tekken(raw)
    features = _features(folder)
    network = _network(folder, torch.float32 if device.type == "cpu" else torch.bfloat16)
    config = network.config
    pacing = parse_pacing(raw.get("audio") or {}, config.audio_length_per_tok)
    if tekken.size > config.text_config.vocab_size:
        raise CheckpointError(
            f"tekken.json has {tekken.size} tokens; config.json's vocab_size is only "
            f"{config.text_config.vocab_size}."
        )
    if (
        features.sampling_rate != pacing.sample_rate_hz
        or features.feature_size != config.audio_config.num_mel_bins
    ):
        raise CheckpointError(
            f"The feature extractor gives {features.feature_size} bands of {features.sampling_rate} Hz "
            f"sound; the model hears {config.audio_config.num_mel_bins} of {pacing.sample_rate_hz} Hz."
        )
    model = pack_linears(VoxtralModel(network, pacing).to(device))
    return VoxtralCheckpoint(model_name(folder), model, features, tekken)


def _features(folder: Path) -> VoxtralRealtimeFeatureExtractor:
    try:
        return VoxtralRealtimeFeatureExtractor.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{folder} holds no feature extractor (processor_config.json): {error}"
        ) from None


def _network(folder: Path, dtype: torch.dtype) -> VoxtralRealtimeForConditionalGeneration:
    """Return the network with every weight from the folder's safetensors files; none may be missing or left
    over."""
    try:
        network, report = VoxtralRealtimeForConditionalGeneration.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{folder} cannot be loaded as {MODEL_TYPE}: {error}") from None
    for which, problem in (
        ("missing_keys", "lacks tensors that the architecture needs"),
        ("unexpected_keys", "has tensors that the architecture has no place for"),
    ):
        if report[which]:
            raise CheckpointError(f"{folder} {problem}: {len(report[which])}, first {min(report[which])}.")
    model: VoxtralRealtimeForConditionalGeneration = network.eval()
    return model
