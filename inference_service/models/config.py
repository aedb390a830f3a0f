"""The typed form of a checkpoint's `config.json`."""

from dataclasses import dataclass
from typing import Any

from transformers import LlamaConfig, Qwen3Config

from inference_service.models.errors import CheckpointError

_QWEN3_FIELDS = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "hidden_act",
    "attention_bias", "tie_word_embeddings",
)  # fmt: skip


@dataclass(frozen=True)
class AudioConfig:
    """The causal audio encoder: `pool` frames of 20 ms become one embedding of the language model."""

    hidden: int
    blocks: int
    kernel: int
    expansion: int
    pool: int


@dataclass(frozen=True)
class VisionConfig:
    """The vision encoder: a square RGB picture of `image_size` becomes `queries` embeddings."""

    image_size: int
    hidden: int
    queries: int


@dataclass(frozen=True)
class SpeechConfig:
    """The speech head: a Llama decoder over one codebook of `codes` entries plus one end code."""

    codes: int
    codes_per_second: int
    audio_bos_token_id: int
    repetition_penalty: float
    repetition_window: int
    top_k: int
    backbone: LlamaConfig

    @property
    def end_code(self) -> int:
        """The code that ends a turn's speech."""
        return self.codes


@dataclass(frozen=True)
class VocoderConfig:
    """The source-filter vocoder: each code becomes `frames_per_code` acoustic frames of 10 ms."""

    codes: int
    sample_rate_hz: int
    frames_per_code: int
    bands: int


@dataclass(frozen=True)
class TurnBound:
    """The bound on a turn of a model that would go on talking."""

    units: int
    """Units after which a turn is ended."""
    rest: int
    """Units of listening after a turn that was ended by the bound."""


@dataclass(frozen=True)
class ModelConfig:
    """A duplex checkpoint: sizes of its parts, and its default settings."""

    name: str
    language: Qwen3Config
    audio: AudioConfig
    vision: VisionConfig | None
    """The vision encoder; None for a model without one."""
    speech: SpeechConfig
    vocoder: VocoderConfig
    prompt_prefix: str
    prompt_suffix: str
    context_limit: int
    window_high: int
    window_low: int
    turn_bound: TurnBound | None
    """The bound on open turns; None for a model that always ends its turns."""
    duplex_defaults: dict[str, Any]
    transcription_prompt: str
    """The prompt before an utterance to transcribe; empty for a model that does not transcribe."""


def language_config(raw: dict[str, Any]) -> Qwen3Config:
    """Return the Qwen3 part of a `config.json`.

    Raises `CheckpointError` for a missing field; the rotary base has no default either.
    """
    theta = raw.get("rope_theta") or (raw.get("rope_parameters") or {}).get("rope_theta")
    if theta is None:
        raise CheckpointError("config.json states no rope_theta; positions cannot be computed without it.")
    missing = [name for name in _QWEN3_FIELDS if name not in raw]
    if missing:
        raise CheckpointError(f"config.json lacks the language model's {', '.join(missing)}.")
    config = Qwen3Config(
        **{name: raw[name] for name in _QWEN3_FIELDS},
        rope_parameters={"rope_type": "default", "rope_theta": float(theta)},
    )
    return config


def _speech_config(raw: dict[str, Any]) -> SpeechConfig:
    backbone = LlamaConfig(
        vocab_size=1,
        bos_token_id=None,
        eos_token_id=None,
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=raw["num_attention_heads"],
        num_key_value_heads=raw["num_key_value_heads"],
        max_position_embeddings=raw["max_position_embeddings"],
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    return SpeechConfig(
        codes=raw["num_audio_tokens"] - 1,
        codes_per_second=raw["codes_per_second"],
        audio_bos_token_id=raw["audio_bos_token_id"],
        repetition_penalty=raw["repetition_penalty"],
        repetition_window=raw["repetition_window"],
        top_k=raw["top_k"],
        backbone=backbone,
    )


def parse_config(raw: dict[str, Any]) -> ModelConfig:
    """Return the typed form of a parsed `config.json`. Raises `CheckpointError` naming a missing field."""
    try:
        duplex = raw["duplex"]
        return ModelConfig(
            name=raw["name"],
            language=language_config(raw),
            audio=AudioConfig(**raw["audio_config"]),
            vision=VisionConfig(**raw["vision_config"]) if "vision_config" in raw else None,
            speech=_speech_config(raw["tts_config"]),
            vocoder=VocoderConfig(**raw["vocoder_config"]),
            prompt_prefix=duplex["prompt_prefix"],
            prompt_suffix=duplex["prompt_suffix"],
            context_limit=duplex["context_limit"],
            window_high=duplex["window_high"],
            window_low=duplex["window_low"],
            turn_bound=TurnBound(**duplex["turn_bound"]) if "turn_bound" in duplex else None,
            duplex_defaults=duplex["defaults"],
            transcription_prompt=raw["transcription"]["prompt"] if "transcription" in raw else "",
        )
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"config.json lacks or misnames a field the architecture needs: {error}."
        ) from None
