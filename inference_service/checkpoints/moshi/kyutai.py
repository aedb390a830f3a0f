"""Conversion of Kyutai's names and shapes to those of transformers' `MoshiForConditionalGeneration`.

Kyutai's layers have queries, keys and values in one weight. The depth transformer's weights are concatenated
by codebook. Rotary positions rotate neighbouring numbers of a head, where transformers rotates its halves.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from transformers import MimiConfig, MoshiConfig

from inference_service.models.errors import CheckpointError

LANGUAGE: Final = {
    "n_q": 16,
    "num_heads": 32,
    "context": 3000,
    "max_period": 10_000,
    "depformer_num_heads": 16,
    "existing_text_padding_id": 3,
}
"""Defaults of the language model's fields in `config.json`, which PersonaPlex and early folders leave out."""
_MIMI: Final[dict[str, dict[str, Any]]] = {
    "seanet": {
        "dimension": 512,
        "n_filters": 64,
        "n_residual_layers": 1,
        "compress": 2,
        "dilation_base": 2,
        "kernel_size": 7,
        "residual_kernel_size": 3,
        "last_kernel_size": 3,
        "ratios": [8, 6, 5, 4],
        "pad_mode": "constant",
    },
    "quantizer": {"dimension": 256, "n_q": 32, "bins": 2048},
    "transformer": {
        "num_heads": 8,
        "num_layers": 8,
        "context": 250,
        "max_period": 10_000,
        "dim_feedforward": 2048,
        "layer_scale": 0.01,
    },
}
_PLAIN: Final = (
    (r"^text_emb\.", "decoder.model.embed_tokens."),
    (r"^text_linear\.", "decoder.lm_head."),
    (r"^out_norm\.alpha$", "decoder.model.norm.weight"),
    (r"^emb\.(\d+)\.", r"embed_tokens.\1."),
    (r"^depformer_text_emb\.", "depth_decoder.text_embed_tokens."),
    (r"^depformer_emb\.(\d+)\.", r"depth_decoder.embed_tokens.\1."),
    (r"^depformer\.", "depth_decoder."),
    (r"^transformer\.", "decoder.model."),
    (r"\.norm1\.alpha$", ".input_layernorm.weight"),
    (r"\.norm2\.alpha$", ".post_attention_layernorm.weight"),
    (r"\.gating\.linear_in\.", ".mlp.fc1."),
    (r"\.gating\.linear_out\.", ".mlp.fc2."),
    (r"\.self_attn\.out_proj\.weight$", ".self_attn.o_proj.linear.weight"),
)
_CODEC: Final = (
    (r"^(en|de)coder\.model\.", r"\1coder.\1coder_seanet.layers."),
    (r"^(en|de)coder_transformer\.transformer\.", r"\1coder.\1coder_transformer."),
    (r"^downsample\.", "encoder.downsample."),
    (r"^upsample\.", "decoder.upsample."),
    (r"\.(?:conv|convtr)(?:\.(?:conv|convtr))+\.", ".conv."),
    (r"\.norm1\.", ".input_layernorm."),
    (r"\.norm2\.", ".post_attention_layernorm."),
    (r"\.linear([12])\.", r".mlp.fc\1."),
    (r"\.layer_scale_1\.", ".self_attn_layer_scale."),
    (r"\.layer_scale_2\.", ".mlp_layer_scale."),
    (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
    (r"^quantizer\.rvq_first\.", "quantizer.semantic_residual_vector_quantizer."),
    (r"^quantizer\.rvq_rest\.", "quantizer.acoustic_residual_vector_quantizer."),
    (r"\.vq\.layers\.", ".layers."),
    (r"\._codebook\._initialized$", ".codebook.initialized"),
    (r"\._codebook\.embedding_sum$", ".codebook.embed_sum"),
    (r"\._codebook\.", ".codebook."),
)
_PER_CODE: Final = (
    (re.compile(r"^depformer_in\.(\d+)\.weight$"), "depth_decoder.input_projections.weight"),
    (re.compile(r"^linears\.(\d+)\.weight$"), "depth_decoder.lm_heads.weight"),
    (
        re.compile(r"^depformer\.layers\.(?P<layer>\d+)\.gating\.(\d+)\.linear_in\.weight$"),
        "depth_decoder.layers.{layer}.mlp.fc1.weight",
    ),
    (
        re.compile(r"^depformer\.layers\.(?P<layer>\d+)\.gating\.(\d+)\.linear_out\.weight$"),
        "depth_decoder.layers.{layer}.mlp.fc2.weight",
    ),
)
"""Weights of one codebook each, which are one tensor in transformers."""

_JOINED: Final = re.compile(r"transformer\.layers\.(\d+)\.self_attn\.in_(?:proj_weight|projs\.0\.weight)")

Read = Callable[[str], Tensor]
"""Returns a tensor by its published name."""


def codec_config(raw: Mapping[str, Any]) -> MimiConfig:
    """Return the codec that the file `mimi_config_name` describes; missing fields are those of Mimi."""
    seanet, quantizer, stack = ({**_MIMI[part], **raw.get(part, {})} for part in _MIMI)
    return MimiConfig(
        sampling_rate=int(raw.get("sample_rate", 24_000)),
        hidden_size=seanet["dimension"],
        num_filters=seanet["n_filters"],
        num_residual_layers=seanet["n_residual_layers"],
        upsampling_ratios=seanet["ratios"],
        kernel_size=seanet["kernel_size"],
        last_kernel_size=seanet["last_kernel_size"],
        residual_kernel_size=seanet["residual_kernel_size"],
        dilation_growth_rate=seanet["dilation_base"],
        compress=seanet["compress"],
        pad_mode=seanet["pad_mode"],
        codebook_size=quantizer["bins"],
        codebook_dim=quantizer["dimension"],
        num_quantizers=quantizer["n_q"],
        vector_quantization_hidden_dimension=quantizer["dimension"],
        upsample_groups=seanet["dimension"],
        num_hidden_layers=stack["num_layers"],
        num_attention_heads=stack["num_heads"],
        num_key_value_heads=stack["num_heads"],
        intermediate_size=stack["dim_feedforward"],
        sliding_window=stack["context"],
        layer_scale_initial_scale=stack["layer_scale"],
        rope_parameters={"rope_type": "default", "rope_theta": float(stack["max_period"])},
    )


def config_of(shapes: Mapping[str, list[int]], raw: Mapping[str, Any], codec: MimiConfig) -> MoshiConfig:
    """Return the architecture of weights with these shapes, by their published names.

    Raises `CheckpointError` for another architecture.
    """
    said = {**LANGUAGE, **raw}
    try:
        texts, width = shapes["text_emb.weight"]
        size = shapes["emb.0.weight"][0] - 1
        inner = shapes["transformer.layers.0.gating.linear_in.weight"][0]
        depth_width = shapes["depformer_in.0.weight"][0]
        depth_inner = shapes["depformer.layers.0.gating.0.linear_in.weight"][0]
    except KeyError as error:
        raise CheckpointError(f"has no tensor {error.args[0]}: it is no Moshi that speaks") from None
    codes = int(said["n_q"]) // 2
    theta = {"rope_type": "default", "rope_theta": float(said["max_period"])}
    depth = {
        "hidden_size": depth_width,
        "num_hidden_layers": _layers(shapes, "depformer.layers"),
        "num_attention_heads": int(said["depformer_num_heads"]),
        "ffn_dim": depth_inner,
        "sliding_window": codes,
    }
    return MoshiConfig(
        vocab_size=texts - 1,
        hidden_size=width,
        num_hidden_layers=_layers(shapes, "transformer.layers"),
        num_attention_heads=int(said["num_heads"]),
        ffn_dim=inner,
        audio_vocab_size=size,
        num_codebooks=codes,
        sliding_window=int(said["context"]),
        max_position_embeddings=int(said["context"]),
        rope_parameters=theta,
        audio_encoder_config=codec.to_dict(),
        depth_decoder_config=depth,
    )


def _layers(shapes: Mapping[str, list[int]], stack: str) -> int:
    found = {int(it[1]) for name in shapes if (it := re.match(rf"{re.escape(stack)}\.(\d+)\.", name))}
    return len(found)


def language_tensors(names: list[str], read: Read, config: MoshiConfig) -> dict[str, Tensor]:
    """Return the tensors of the language model by their names in transformers.

    Of the depth transformer, only the weights for the model's own codes are read. PersonaPlex also has
    weights for the user's codes, which are always known.
    """
    codes, depth = config.num_codebooks, config.depth_decoder_config
    made: dict[str, Tensor] = {}
    lists: dict[str, dict[int, str]] = {}
    for name in names:
        for pattern, target in _PER_CODE:
            if found := pattern.match(name):
                named = target.format(**found.groupdict())
                lists.setdefault(named, {})[int(found.groups()[-1])] = name
                break
        else:
            made |= _language(name, read, config)
    for target, parts in lists.items():
        if not set(range(codes)) <= parts.keys():
            raise CheckpointError(f"has weights of {len(parts)} codebooks, not of {codes}: {target}")
        made[target] = torch.stack([read(parts[code]) for code in range(codes)])
    for number in range(depth.num_hidden_layers):
        stem = f"depformer.layers.{number}.self_attn"
        target = f"depth_decoder.layers.{number}.self_attn"
        joined = _by_code(names, read, f"{stem}.in_proj", codes, 3 * depth.hidden_size)
        for part, weight in zip("qkv", joined.chunk(3, dim=1), strict=True):
            made[f"{target}.{part}_proj.linear.weight"] = weight.contiguous()
        out = _by_code(names, read, f"{stem}.out_proj", codes, depth.hidden_size)
        made[f"{target}.o_proj.linear.weight"] = out
    return made


def _language(name: str, read: Read, config: MoshiConfig) -> dict[str, Tensor]:
    """Return the converted tensors of one published tensor; empty where it is handled elsewhere."""
    if name.startswith("depformer.") and ".self_attn." in name:
        return {}
    found = re.fullmatch(r"depformer_emb\.(\d+)\.weight", name)
    if found and int(found[1]) >= config.num_codebooks - 1:
        return {}
    if found := _JOINED.fullmatch(name):
        return _attention(
            f"decoder.model.layers.{found[1]}.self_attn", read(name), config.num_attention_heads, ".linear"
        )
    tensor = read(name)
    renamed = _renamed(name.replace(".out_projs.0.", ".out_proj."), _PLAIN)
    return {renamed: tensor.reshape(-1) if name.endswith(".alpha") else tensor}


def codec_tensors(names: list[str], read: Read, config: MimiConfig) -> dict[str, Tensor]:
    """Return the tensors of the codec by their names in transformers."""
    made: dict[str, Tensor] = {}
    for name in names:
        plain = re.sub(r"\.self_attn\.in_projs\.0\.weight$", ".self_attn.in_proj_weight", name)
        plain = plain.replace(".out_projs.0.", ".out_proj.")
        renamed = _renamed(plain, _CODEC)
        stem = renamed.removesuffix(".in_proj_weight")
        if stem != renamed:
            made |= _attention(stem, read(name), config.num_attention_heads, "")
        else:
            made[renamed] = read(name)
    return {f"audio_encoder.{name}": tensor for name, tensor in made.items()}


def _renamed(name: str, rules: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _by_code(names: list[str], read: Read, stem: str, codes: int, rows: int) -> Tensor:
    """Return weights [codes, rows, n] that are published separately, or concatenated."""
    whole = f"{stem}_weight" if f"{stem}_weight" in names else f"{stem}.weight"
    if whole in names:
        weight = read(whole)
        if len(weight) < codes * rows:
            raise CheckpointError(f"has weights of {len(weight) // rows} codebooks, not of {codes}: {whole}")
        return weight[: codes * rows].view(codes, rows, -1)
    parts = [f"{stem}s.{code}.weight" for code in range(codes)]
    if lacking := [part for part in parts if part not in names]:
        raise CheckpointError(f"has no tensor {lacking[0]}")
    return torch.stack([read(part) for part in parts])


def _attention(stem: str, joined: Tensor, heads: int, behind: str) -> dict[str, Tensor]:
    """Return queries, keys and values of one weight, with positions that rotate halves of a head."""
    query, key, value = joined.chunk(3)
    parts = {"q_proj": _halves(query, heads), "k_proj": _halves(key, heads), "v_proj": value}
    return {f"{stem}.{name}{behind}.weight": weight.contiguous() for name, weight in parts.items()}


def _halves(weight: Tensor, heads: int) -> Tensor:
    pairs = weight.view(heads, len(weight) // heads // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)
