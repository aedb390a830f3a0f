"""The recordings of `tests/data/token2wav_tiny`, and the model that must reproduce them."""

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from inference_service.checkpoints.vocoder import load
from inference_service.checkpoints.vocoder_conversion import convert
from inference_service.models.token2wav.config import Token2WavConfig
from inference_service.models.token2wav.flow import FlowState, VoicePrompt
from inference_service.models.token2wav.model import Token2Wav
from inference_service.models.token2wav.noise import SourceNoise
from tests.inference_service.models.token2wav import published
from tests.inference_service.models.token2wav.published import RECORDED

MEL_LIMIT = CACHE_LIMIT = 1e-4
FROM_MEL_LIMIT = 1e-3
"""Of sound and excitation from recorded mel frames and caches."""
FROM_SOURCE_LIMIT = 1e-5
WAVE_LIMIT = 5e-3

STREAMS = {"stream_a": "a", "stream_b": "b", "stream_n10": "a", "stream_small": "a", "stream_one": "a"}
"""Recorded streams and their prompts."""


@cache
def tensors(name: str) -> dict[str, Tensor]:
    """A file of tensors."""
    loaded: dict[str, Tensor] = load_file(RECORDED / f"{name}.safetensors")
    return loaded


@cache
def stream(name: str) -> dict[str, Any]:
    """The JSON part of a recorded stream."""
    data: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return data


def prompt(name: str) -> VoicePrompt:
    """Voice prompt `a` of 60 tokens, or `b` of 10."""
    inputs = tensors("inputs")
    tokens, mel, speaker = (inputs[f"prompt_{name}.{part}"][0] for part in ("tokens", "mel", "spk"))
    return VoicePrompt(tokens.long(), mel, speaker)


def source_noise() -> SourceNoise:
    """The recorded rule: call k begins 997 k rows into the table."""
    return SourceNoise(tensors("inputs")["source_noise_table"], 997)


def model(
    *,
    is_causal: bool = False,
    steps: int = 5,
    reference_quirks: bool = True,
    cache_dtype: torch.dtype = torch.float32,
) -> Token2Wav:
    """The recorded weights with the recorded noise."""
    config, weights = _checkpoint(is_causal)
    made = Token2Wav(
        config,
        steps=steps,
        cache_dtype=cache_dtype,
        reference_quirks=reference_quirks,
        noise=tensors("inputs")["cfm_noise"][0],
        source_noise=source_noise(),
    )
    made.load_state_dict(weights)
    return made.eval()


@cache
def _checkpoint(is_causal: bool) -> tuple[Token2WavConfig, dict[str, Tensor]]:
    """Through the published layout and its conversion."""
    with tempfile.TemporaryDirectory() as folder:
        source = published.write(Path(folder) / "published", is_causal=is_causal)
        target = Path(folder) / "vocoder"
        convert(source, target, {})
        made = load(target, torch.device("cpu"))
    return made.config, made.state_dict()


def published_caches(state: FlowState) -> dict[str, Tensor]:
    """Our caches in the published order of axes.

    Of the first blocks' half of `conformer_att_cache` only so many entries are given as the next call reads.
    """
    encoder = state.encoder
    keyed = {"conformer_att_cache.first": encoder.first, "conformer_att_cache.second": encoder.second}
    attention = {name: torch.cat([it[:, 0], it[:, 1]], dim=-1)[:, None] for name, it in keyed.items()}
    return {
        **attention,
        "conformer_cnn_cache": torch.cat([encoder.look, encoder.up], dim=1)[None],
        "estimator_att_cache": torch.cat([state.attention[:, :, 0], state.attention[:, :, 1]], dim=-1),
        "estimator_cnn_cache": torch.cat([state.convolution[:, :, 0], state.convolution[:, :, 1]], dim=-2),
    }
