"""The typed form of MiniCPM-o's `config.json` and `preprocessor_config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import LlamaConfig, Qwen3Config

from inference_service.models.config import SpeechConfig, language_config
from inference_service.models.errors import CheckpointError

MODEL_TYPE = "minicpmo"
_FRAMES_PER_SECOND = 50
"""Frames of the audio encoder in a second."""
_RESAMPLER_HEAD = 128

_TOP_FIXED = {
    "drop_vision_last_layer": (False, True),
    "patch_size": (14, 14),
    "rope_scaling": (None, None),
    "use_sliding_window": (False, False),
}
_VISION_FIXED = {
    "image_size": (980, 980),
    "patch_size": (14, 14),
    "hidden_act": ("gelu_pytorch_tanh", "gelu_pytorch_tanh"),
    "num_channels": (3, 3),
}
_AUDIO_FIXED = {
    "activation_function": ("gelu", "gelu"),
    "max_source_positions": (1500, 1500),
    "scale_embedding": (False, False),
}
_SPEECH_FIXED = {
    "backbone_model": ("llama", "llama"),
    "condition_type": ("hidden_text_merge", "llm_hidden"),
    "hidden_act": ("silu", "silu"),
    "normalize_projected_hidden": (True, False),
    "num_vq": (1, 1),
    "projector_type": ("mlp", "mlp"),
}
"""Required values of fields, and the value that the published code uses for a missing one."""


@dataclass(frozen=True)
class AudioConfig:
    """The ear: a Whisper encoder; `pool` of its frames of 20 ms become one embedding."""

    width: int
    layers: int
    heads: int
    inner: int
    bands: int
    pool: int
    block: int
    """Frames of a clip that attend to each other, and to all earlier ones."""


@dataclass(frozen=True)
class VisionConfig:
    """The eye: a SigLIP encoder, and a resampler to `queries` embeddings for each slice."""

    width: int
    layers: int
    heads: int
    inner: int
    norm_eps: float
    queries: int
    slices_at_once: int
    resolution: int
    """Side of a square with about as many pixels as a slice."""
    max_slices: int
    """Limit of details of a picture in a chat."""
    use_image_id: bool
    """Whether the pictures of a chat are numbered."""
    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True)
class MiniCPMOConfig:
    """A checkpoint: sizes of its parts."""

    language: Qwen3Config
    audio: AudioConfig
    vision: VisionConfig
    speech: SpeechConfig
    text_tokens: int
    """Rows of the speech head's text embeddings; more than the language model's vocabulary."""


def parse_config(raw: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> MiniCPMOConfig:
    """Return the typed form of a parsed `config.json` and `preprocessor_config.json`.

    Raises `CheckpointError` naming a field that is missing, of a wrong kind, or of another architecture.
    """
    try:
        return _parsed(_Section(raw, "config.json"), _Section(preprocessor, "preprocessor_config.json"), raw)
    except StrictDataclassError as error:  # transformers' own checks of a backbone
        raise CheckpointError(f"config.json: {error.__cause__ or error}") from None


def _parsed(top: "_Section", preprocessor: "_Section", raw: Mapping[str, Any]) -> MiniCPMOConfig:
    top.require(_TOP_FIXED)
    top.require({name: (True, True) for name in ("init_vision", "init_audio", "init_tts")})
    language = language_config(dict(raw))
    speech = top.section("tts_config")
    speech.require({"llm_dim": (language.hidden_size, None)})
    config = MiniCPMOConfig(
        language=language,
        audio=_audio(top),
        vision=_vision(top, preprocessor, language.hidden_size),
        speech=_speech(speech),
        text_tokens=speech.integer("num_text_tokens"),
    )
    for name, backbone in (("", language), ("tts_config.", config.speech.backbone)):
        heads, shared = backbone.num_attention_heads, backbone.num_key_value_heads
        _check_multiple(f"{name}num_attention_heads", heads, shared, "num_key_value_heads")
    return config


class _Section:
    """A JSON object whose fields are read by kind; errors name the whole path of a field."""

    def __init__(self, raw: Mapping[str, Any], path: str) -> None:
        self._raw = raw
        self._path = path
        self._joint = ": " if path.endswith(".json") else "."

    def require(self, fixed: Mapping[str, tuple[Any, Any]]) -> None:
        """Require fields to have the first of their values; the second is that of a missing field."""
        for name, (value, unset) in fixed.items():
            given = self._raw.get(name, unset)
            if given != value:
                raise self._refused(name, f"must be {value!r} for this architecture, not {given!r}")

    def section(self, name: str) -> "_Section":
        value = self._raw.get(name)
        if not isinstance(value, dict):
            raise self._refused(name, "must be given, as an object")
        return _Section(value, f"{self._path}{self._joint}{name}")

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._raw.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self._refused(name, f"must be a whole number of at least 1, not {value!r}")
        return value

    def number(self, name: str, default: float) -> float:
        value = self._raw.get(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._refused(name, f"must be a number, not {value!r}")
        return float(value)

    def numbers(self, name: str, default: tuple[float, ...]) -> tuple[float, ...]:
        value = self._raw.get(name, default)
        if not (
            isinstance(value, list | tuple)
            and len(value) == len(default)
            and all(isinstance(it, int | float) for it in value)
        ):
            raise self._refused(name, f"must hold {len(default)} numbers, not {value!r}")
        return tuple(float(it) for it in value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._raw.get(name, default)
        if not isinstance(value, bool):
            raise self._refused(name, f"must be true or false, not {value!r}")
        return value

    def _refused(self, name: str, problem: str) -> CheckpointError:
        return CheckpointError(f"{self._path}{self._joint}{name} {problem}.")


def _audio(top: _Section) -> AudioConfig:
    audio = top.section("audio_config")
    audio.require(_AUDIO_FIXED)
    seconds = top.number("audio_chunk_length", 1.0)
    width, heads = audio.integer("d_model"), audio.integer("encoder_attention_heads")
    _check_multiple("audio_config.d_model", width, heads, "encoder_attention_heads")
    return AudioConfig(
        width=width,
        layers=audio.integer("encoder_layers"),
        heads=heads,
        inner=audio.integer("encoder_ffn_dim"),
        bands=audio.integer("num_mel_bins"),
        pool=top.integer("audio_pool_step", 5),
        block=int(seconds * _FRAMES_PER_SECOND) if seconds > 0 else 1500,
    )


def _vision(top: _Section, preprocessor: _Section, hidden: int) -> VisionConfig:
    vision, slicing = top.section("vision_config"), top.section("slice_config")
    vision.require(_VISION_FIXED)
    slicing.require({"patch_size": (14, 14)})
    width, heads = vision.integer("hidden_size"), vision.integer("num_attention_heads")
    _check_multiple("vision_config.hidden_size", width, heads, "num_attention_heads")
    _check_multiple("hidden_size", hidden, _RESAMPLER_HEAD, "the resampler's head size")
    resolution = slicing.integer("scale_resolution", 448)
    std = preprocessor.numbers("norm_std", (0.5, 0.5, 0.5))
    if not all(std):
        raise CheckpointError(f"preprocessor_config.json: norm_std must not hold 0, not even in {list(std)}.")
    return VisionConfig(
        width=width,
        layers=vision.integer("num_hidden_layers"),
        heads=heads,
        inner=vision.integer("intermediate_size"),
        norm_eps=vision.number("layer_norm_eps", 1e-6),
        queries=top.integer("query_num"),
        slices_at_once=top.integer("vision_batch_size", 16),
        resolution=preprocessor.integer("scale_resolution", resolution),
        max_slices=preprocessor.integer("max_slice_nums", 9),
        use_image_id=preprocessor.flag("use_image_id", True),
        mean=preprocessor.numbers("norm_mean", (0.5, 0.5, 0.5)),
        std=std,
    )


def _speech(speech: _Section) -> SpeechConfig:
    speech.require(_SPEECH_FIXED)
    codes = speech.integer("num_audio_tokens") - 1
    backbone = LlamaConfig(
        vocab_size=1,
        bos_token_id=None,
        eos_token_id=None,
        hidden_size=speech.integer("hidden_size", 768),
        intermediate_size=speech.integer("intermediate_size", 3072),
        num_hidden_layers=speech.integer("num_hidden_layers", 20),
        num_attention_heads=speech.integer("num_attention_heads", 12),
        num_key_value_heads=speech.integer("num_key_value_heads", 12),
        max_position_embeddings=speech.integer("max_position_embeddings", 4096),
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    )
    return SpeechConfig(
        codes=codes,
        codes_per_second=25,
        audio_bos_token_id=speech.integer("audio_bos_token_id"),
        repetition_penalty=1.05,
        repetition_window=16,
        top_k=codes + 1,
        backbone=backbone,
    )


def _check_multiple(name: str, value: int, of: int, what: str) -> None:
    if value % of:
        raise CheckpointError(f"config.json: {name} must be a multiple of {what}, {of}, not {value}.")
