"""The memory of a Moshi and its conversations."""

import torch
from transformers import MimiConfig, MoshiConfig

from inference_service.engine.batch.memory import bytes_per_row
from inference_service.engine.batch.pages import slot_rows
from inference_service.engine.runtime import Runtime
from inference_service.families.memory.footprint import Footprint
from inference_service.families.memory.working_memory import DECODER_SHAPES, forward_bytes, kernel_bytes
from inference_service.families.moshi.rewind import MOST
from inference_service.families.moshi.runtime import codec_capacity, slot_capacity
from inference_service.models.moshi.temporal import temporal_config

_FLOAT = 4
_CODE = 8
_WIDEST = 4
"""Number of the codec's largest arrays, those at the full sample rate, that exist at the same time."""


def footprint(
    config: MoshiConfig, weights: dict[str, int], dtype: torch.dtype, device: torch.device
) -> Footprint:
    """Return the memory of these `weights` and of the sessions."""
    codec, temporal = config.audio_encoder_config, temporal_config(config)
    sliding = slot_rows(codec_capacity(int(codec.sliding_window)))
    window = int(config.sliding_window)
    return Footprint(
        weights,
        {
            "context": slot_rows(slot_capacity(window)) * bytes_per_row(temporal, dtype),
            "codec": 2 * sliding * bytes_per_row(codec, torch.float32) + _kept(codec),
            "history": MOST * config.num_codebooks * _CODE,
        },
        {"kernels": kernel_bytes(3 * DECODER_SHAPES, dtype, device)},
        working={"forward": forward_bytes(temporal, dtype, Runtime.budget, window, device)},
        together={"frames": _WIDEST * codec.frame_size * codec.num_filters * _FLOAT},
    )


def _kept(codec: MimiConfig) -> int:
    """Return an upper bound, in bytes, of one stream's convolution states: one kernel for each layer."""
    widest = codec.num_filters * 2 ** len(codec.upsampling_ratios)
    layers = 4 + 3 * len(codec.upsampling_ratios)
    longest = max(codec.kernel_size, *codec.upsampling_ratios)
    return int(2 * layers * longest * widest * _FLOAT)
