"""Configurations: what the published fields mean, and one clear error for what the architecture is not."""

import json
from typing import Any

import pytest

from inference_service.models.errors import CheckpointError
from inference_service.models.minicpmo.config import MiniCPMOConfig, parse_config
from tests.inference_service.engine.support import golden


def raw(name: str = "config.json") -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden.FOLDER / name).read_text())
    return found


def parsed(
    config: dict[str, Any] | None = None, preprocessor: dict[str, Any] | None = None
) -> MiniCPMOConfig:
    return parse_config(
        config or raw(), preprocessor if preprocessor is not None else raw("preprocessor_config.json")
    )


def changed(path: str, value: object) -> dict[str, Any]:
    """The config with one field set, or with None taken away."""
    config = raw()
    *sections, name = path.split(".")
    place = config
    for section in sections:
        place = place[section]
    if value is None:
        del place[name]
    else:
        place[name] = value
    return config


def refusal(config: dict[str, Any], preprocessor: dict[str, Any] | None = None) -> str:
    with pytest.raises(CheckpointError) as refused:
        parsed(config, preprocessor)
    return str(refused.value)


def test_fields_are_read_by_their_published_names() -> None:
    config = parsed()
    language, audio, vision, speech = config.language, config.audio, config.vision, config.speech
    assert (language.hidden_size, language.num_hidden_layers, language.head_dim) == (256, 2, 32)
    assert language.rope_parameters["rope_theta"] == 1_000_000
    assert (audio.width, audio.layers, audio.heads, audio.inner, audio.bands) == (32, 2, 2, 128, 80)
    assert (audio.pool, audio.block) == (5, 50)
    assert (vision.width, vision.layers, vision.heads, vision.inner, vision.norm_eps) == (32, 2, 2, 80, 1e-6)
    assert (vision.queries, vision.slices_at_once, vision.resolution, vision.max_slices) == (8, 16, 112, 9)
    assert (vision.use_image_id, vision.mean, vision.std) == (True, (0.5,) * 3, (0.5,) * 3)
    assert (speech.codes, speech.end_code, speech.codes_per_second) == (65, 65, 25)
    assert (speech.backbone.hidden_size, speech.backbone.num_hidden_layers) == (64, 2)
    assert (speech.audio_bos_token_id, config.text_tokens) == (684, 800)


@pytest.mark.parametrize(
    ("path", "size"),
    [
        ("tts_config.hidden_size", 768),
        ("tts_config.num_hidden_layers", 20),
        ("tts_config.intermediate_size", 3072),
        ("tts_config.max_position_embeddings", 4096),
    ],
)
def test_a_speech_size_that_is_left_out_is_the_published_one(path: str, size: int) -> None:
    assert getattr(parsed(changed(path, None)).speech.backbone, path.split(".")[1]) == size


def test_a_clip_without_chunks_hears_all_of_itself() -> None:
    assert parsed(changed("audio_chunk_length", -1.0)).audio.block == 1500


def test_slices_follow_the_preprocessor_and_else_the_config() -> None:
    preprocessor = raw("preprocessor_config.json") | {"scale_resolution": 448, "max_slice_nums": 4}
    assert parsed(None, preprocessor).vision.resolution == 448
    assert parsed(None, preprocessor).vision.max_slices == 4
    del preprocessor["scale_resolution"]
    assert parsed(None, preprocessor).vision.resolution == 112


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("drop_vision_last_layer", True, "config.json: drop_vision_last_layer must be False for this arch"),
        ("drop_vision_last_layer", None, "must be False for this architecture, not True"),
        ("patch_size", 16, "config.json: patch_size must be 14 for this architecture, not 16"),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}, "config.json: rope_scaling must be None"),
        ("use_sliding_window", True, "use_sliding_window must be False"),
        ("init_audio", False, "init_audio must be True"),
        ("vision_config.hidden_act", "gelu", "vision_config.hidden_act must be 'gelu_pytorch_tanh'"),
        ("vision_config.image_size", 448, "vision_config.image_size must be 980"),
        (
            "vision_config.num_attention_heads",
            3,
            "vision_config.hidden_size must be a multiple of num_attention_heads, 3, not 32",
        ),
        ("audio_config.scale_embedding", True, "config.json: audio_config.scale_embedding must be False"),
        (
            "audio_config.encoder_attention_heads",
            5,
            "audio_config.d_model must be a multiple of encoder_attention_heads, 5",
        ),
        ("tts_config.condition_type", "llm_hidden", "tts_config.condition_type must be 'hidden_text_merge'"),
        (
            "tts_config.condition_type",
            None,
            "must be 'hidden_text_merge' for this architecture, not 'llm_hidden'",
        ),
        ("tts_config.normalize_projected_hidden", None, "tts_config.normalize_projected_hidden must be True"),
        ("tts_config.llm_dim", 512, "config.json: tts_config.llm_dim must be 256"),
        ("slice_config.patch_size", 16, "slice_config.patch_size must be 14"),
        ("hidden_size", 192, "hidden_size must be a multiple of the resampler's head size, 128, not 192"),
        (
            "num_key_value_heads",
            3,
            "num_attention_heads must be a multiple of num_key_value_heads, 3, not 4",
        ),
        ("tts_config.num_key_value_heads", 3, "tts_config.num_attention_heads must be a multiple"),
        ("tts_config.num_attention_heads", 12, "config.json: The hidden size (64) is not a multiple"),
        ("tts_config.num_key_value_heads", "2", "tts_config.num_key_value_heads must be a whole number"),
        ("num_hidden_layers", "two", "config.json: "),
    ],
)
def test_another_architecture_is_refused(path: str, value: object, message: str) -> None:
    config = changed(path, value)
    if path == "hidden_size":
        config["tts_config"]["llm_dim"] = value
    assert message in refusal(config)


@pytest.mark.parametrize(
    "path",
    [
        *("audio_config", "audio_config.d_model", "audio_config.encoder_layers", "audio_config.num_mel_bins"),
        *(
            "vision_config",
            "vision_config.hidden_size",
            "slice_config",
            "query_num",
            "vocab_size",
            "rope_theta",
        ),
        *("tts_config", "tts_config.num_audio_tokens", "tts_config.num_text_tokens"),
        "tts_config.audio_bos_token_id",
    ],
)
def test_a_missing_field_is_named(path: str) -> None:
    assert path in refusal(changed(path, None))


@pytest.mark.parametrize("value", ["32", 0, -1, 2.5, True, [32]])
def test_a_size_is_a_whole_number(value: object) -> None:
    message = refusal(changed("audio_config.d_model", value))
    assert message == (
        f"config.json: audio_config.d_model must be a whole number of at least 1, not {value!r}."
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("norm_mean", [0.5], "preprocessor_config.json: norm_mean must hold 3 numbers, not [0.5]"),
        ("norm_std", ["a", "b", "c"], "norm_std must hold 3 numbers"),
        ("norm_std", [0.5, 0.0, 0.5], "norm_std must not hold 0"),
        ("use_image_id", "yes", "preprocessor_config.json: use_image_id must be true or false, not 'yes'"),
        ("max_slice_nums", 0, "max_slice_nums must be a whole number of at least 1"),
    ],
)
def test_a_bad_preprocessor_is_refused(field: str, value: object, message: str) -> None:
    assert message in refusal(raw(), raw("preprocessor_config.json") | {field: value})
