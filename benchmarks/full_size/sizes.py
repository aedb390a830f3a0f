"""Dimensions of MiniCPM-o 4.5 as published, and of smaller models of the same layout.

The dimensions are those of the published architecture; the published `config.json` was not available. The
tokenizer is that of the tests, whose 745 ids are within the published vocabulary.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from inference_service.models.minicpmo.config import MiniCPMOConfig, parse_config
from inference_service.models.token2wav.config import (
    EncoderConfig,
    EstimatorConfig,
    Token2WavConfig,
    VocoderConfig,
)

TINY_FOLDER: Final = Path(__file__).parents[2] / "tests/data/minicpmo_tiny"
SMALL_FILES: Final = ("preprocessor_config.json", "tokenizer.json", "tokenizer_config.json")
"""Files beside `config.json`. They are equal for all sizes, except for the resolution of slices."""

_PUBLISHED_RESOLUTION: Final = {"scale_resolution": 448, "image_feature_size": 64}


@dataclass(frozen=True)
class Size:
    """The dimensions of a model: its changes to the `config.json` of the tests, and its vocoder."""

    name: str
    changes: dict[str, Any]
    vocoder: Token2WavConfig
    shard_bytes: int
    """The largest size of a shard in bytes."""
    tolerance: float
    """The largest relative difference between the predicted and the measured memory.

    The memory of libraries and of oneDNN is a larger share of a smaller model.
    """

    @cached_property
    def raw(self) -> dict[str, Any]:
        """Return `config.json`."""
        return _merged(_read("config.json"), self.changes)

    @cached_property
    def preprocessor(self) -> dict[str, Any]:
        """Return `preprocessor_config.json`."""
        return _read("preprocessor_config.json") | (_PUBLISHED_RESOLUTION if self.changes else {})

    @cached_property
    def config(self) -> MiniCPMOConfig:
        """Return the typed form of both."""
        return parse_config(self.raw, self.preprocessor)


def _read(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = json.loads((TINY_FOLDER / name).read_text())
    return raw


def _merged(raw: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `raw` with `changes`, section by section."""
    merged = dict(raw)
    for name, value in changes.items():
        merged[name] = _merged(raw[name], value) if isinstance(value, dict) else value
    return merged


FULL: Final = Size(
    "MiniCPM-o 4.5",
    {
        "torch_dtype": "bfloat16",
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151_748,
        "query_num": 64,
        "slice_config": {"scale_resolution": 448},
        "vision_config": {
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_hidden_layers": 27,
            "num_attention_heads": 16,
        },
        "audio_config": {
            "d_model": 1024,
            "encoder_layers": 24,
            "encoder_attention_heads": 16,
            "encoder_ffn_dim": 4096,
        },
        "tts_config": {
            "llm_dim": 4096,
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_attention_heads": 12,
            "num_hidden_layers": 20,
            "num_key_value_heads": 12,
            "num_audio_tokens": 6562,
            "num_text_tokens": 152_064,
        },
    },
    Token2WavConfig(),
    4 << 30,
    0.05,
)
"""19 GB in bfloat16."""

TENTH: Final = Size(
    "a tenth of MiniCPM-o 4.5",
    {
        "torch_dtype": "bfloat16",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151_748,
        "query_num": 64,
        "slice_config": {"scale_resolution": 448},
        "vision_config": {
            "hidden_size": 576,
            "intermediate_size": 2152,
            "num_hidden_layers": 14,
            "num_attention_heads": 8,
        },
        "audio_config": {
            "d_model": 512,
            "encoder_layers": 12,
            "encoder_attention_heads": 8,
            "encoder_ffn_dim": 2048,
        },
        "tts_config": {
            "llm_dim": 1024,
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_attention_heads": 6,
            "num_hidden_layers": 10,
            "num_key_value_heads": 6,
            "num_audio_tokens": 6562,
            "num_text_tokens": 152_064,
        },
    },
    Token2WavConfig(
        EncoderConfig(6561, 256, 4, 1024, 6, 4), EstimatorConfig(256, 8, 4, 64), VocoderConfig(256, 256)
    ),
    1 << 29,
    0.1,
)

TINY: Final = Size(
    "tiny",
    {},
    Token2WavConfig(
        EncoderConfig(6561, 32, 4, 48, 2, 1), EstimatorConfig(24, 2, 2, 8), VocoderConfig(32, 32)
    ),
    1 << 20,
    1.0,
)
"""The dimensions of the test data in `tests/data/minicpmo_tiny`."""

SIZES: Final = {"full": FULL, "tenth": TENTH, "tiny": TINY}
