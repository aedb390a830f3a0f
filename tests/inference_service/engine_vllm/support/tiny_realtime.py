"""A tiny Voxtral Realtime checkpoint in both published layouts: transformers' and Mistral's."""

import json
import re
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file
from torch import Tensor

from tests.inference_service.engine.support import tiny_voxtral

HEAD: Final = 32
"""Size of an attention head; vLLM has kernels for no smaller one."""
THETA: Final = 1_000_000.0
"""Base of the rotary positions, which vLLM's encoder does not read from a file."""
_LAYER = {
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
    "self_attn_layer_norm": "attention_norm",
    "final_layer_norm": "ffn_norm",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "ada_rms_norm.linear1": "ada_rms_norm_t_cond.0",
    "ada_rms_norm.linear2": "ada_rms_norm_t_cond.2",
}
_AUDIO = "mm_streams_embeddings.embedding_module."
_EAR = f"{_AUDIO}whisper_encoder."
_OTHERS = {
    "model.audio_tower.embedder.conv1": f"{_EAR}conv_layers.0.conv",
    "model.audio_tower.embedder.conv2": f"{_EAR}conv_layers.1.conv",
    "model.audio_tower.norm": f"{_EAR}transformer.norm",
    "model.language_model.embed_tokens": f"{_AUDIO}tok_embeddings",
    "model.language_model.norm": "norm",
    "model.multi_modal_projector.linear_1": f"{_AUDIO}audio_language_projection.0",
    "model.multi_modal_projector.linear_2": f"{_AUDIO}audio_language_projection.2",
    "lm_head": "output",
}
_CONTROLS = (
    "<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] "
    "[TOOL_CALLS] [IMG] <pad> [IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] "
    "[/SYSTEM_PROMPT] [TOOL_CONTENT]"
).split()
_FURTHER = {24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 34: "[TRANSCRIBE]", 35: "[ARGS]", 36: "[CALL_ID]"}


def save(folder: Path) -> Path:
    """Write a checkpoint that both engines serve with the same weights."""
    tiny_voxtral.save(folder, head_dim=HEAD, theta=THETA)
    network = tiny_voxtral.network(head_dim=HEAD, theta=THETA)
    weights = dict(_as_mistral(name, weight) for name, weight in network.state_dict().items())
    save_file(weights, folder / "consolidated.safetensors")
    (folder / "params.json").write_text(json.dumps(_params()))
    raw = json.loads((folder / "tekken.json").read_text())
    names = {**dict(enumerate(_CONTROLS)), **_FURTHER}
    for token in raw["special_tokens"]:
        token["token_str"] = names.get(token["rank"], token["token_str"])
    (folder / "tekken.json").write_text(json.dumps(raw))
    return folder


def _as_mistral(name: str, weight: Tensor) -> tuple[str, Tensor]:
    stem, _, kind = name.rpartition(".")
    if stem in _OTHERS:
        return f"{_OTHERS[stem]}.{kind}", weight.contiguous()
    found = re.fullmatch(r"model\.(audio_tower|language_model)\.layers\.(\d+)\.(.*)", stem)
    assert found is not None, name
    tower, layer, part = found.groups()
    if part in ("self_attn.q_proj", "self_attn.k_proj"):
        weight = _interleaved(weight)
    before = f"{_EAR}transformer." if tower == "audio_tower" else ""
    return f"{before}layers.{layer}.{_LAYER[part]}.{kind}", weight.contiguous()


def _interleaved(weight: Tensor) -> Tensor:
    """Put the rows of each head in pairs that turn together; transformers has them half a head apart."""
    halves: Tensor = weight.unflatten(0, (-1, 2, HEAD // 2))
    return halves.transpose(1, 2).flatten(0, 2)


def _stack(config: Any) -> dict[str, Any]:
    """Describe the decoder or the encoder."""
    return {
        "dim": config.hidden_size,
        "n_layers": config.num_hidden_layers,
        "head_dim": HEAD,
        "hidden_dim": config.intermediate_size,
        "n_heads": config.num_attention_heads,
        "n_kv_heads": config.num_key_value_heads,
        "causal": True,
        "rope_theta": THETA,
        "norm_eps": config.rms_norm_eps,
        "sliding_window": config.sliding_window,
    }


def _params() -> dict[str, Any]:
    config = tiny_voxtral.config(HEAD, THETA)
    features = tiny_voxtral.tekken()["audio"]
    encoding = {
        "sampling_rate": features["sampling_rate"],
        "frame_rate": features["frame_rate"],
        **features["audio_encoding_config"],
        "chunk_length_s": None,
        "global_log_mel_max": 1.5,
        "transcription_format": "streaming",
    }
    encoder = {
        **_stack(config.audio_config),
        "audio_encoding_args": encoding,
        "vocab_size": tiny_voxtral.VOCABULARY,
        "use_biases": True,
        "use_cache": False,
        "pos_embed": "rope",
        "max_source_positions": None,
        "ffn_type": "swiglu",
        "norm_type": "rms_norm",
    }
    return {
        **_stack(config.text_config),
        "use_biases": False,
        "vocab_size": tiny_voxtral.VOCABULARY,
        "model_parallel": 1,
        "tied_embeddings": False,
        "model_max_length": 4096,
        "max_position_embeddings": 4096,
        "multimodal": {
            "whisper_model_args": {
                "encoder_args": encoder,
                "downsample_args": {"downsample_factor": config.downsample_factor},
            }
        },
        "ada_rms_norm_t_cond": True,
        "ada_rms_norm_t_cond_dim": 32,
    }
