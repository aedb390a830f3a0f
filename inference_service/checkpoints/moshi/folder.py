"""Folders of Moshi and PersonaPlex, as Kyutai and NVIDIA publish them and as transformers saves them.

Published: `config.json`, `model.safetensors`, the codec and the tokenizer in files that `config.json` names
or that have their usual names; PersonaPlex has `voices/` as well. Saved: `config.json`, safetensors and
`tokenizer.json`. Never pickle, never remote code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import MimiModel, MoshiConfig, MoshiForConditionalGeneration

from inference_service.checkpoints.files import read_json
from inference_service.checkpoints.hub import model_name
from inference_service.checkpoints.moshi.kyutai import (
    LANGUAGE,
    codec_config,
    codec_tensors,
    config_of,
    language_tensors,
)
from inference_service.checkpoints.moshi.tokenizer import (
    MoshiTokenizer,
    read_json_tokenizer,
    read_sentencepiece,
)
from inference_service.checkpoints.moshi.voices import VoicePrompt, read_voices
from inference_service.kernels.packed_linear import pack_linears
from inference_service.models.errors import CheckpointError
from inference_service.models.moshi.model import MoshiModel, Words

MOSHI: Final = "moshi"
PERSONAPLEX: Final = "personaplex"
_CODEC: Final = "tokenizer-e351c8d8-checkpoint125.safetensors"
_TOKENIZER: Final = "tokenizer_spm_32k_3.model"
_WORD_ENDS: Final = 0


@dataclass(frozen=True)
class MoshiCheckpoint:
    """A model ready to run, and what stands beside it."""

    name: str
    model: MoshiModel
    tokenizer: MoshiTokenizer
    voices: Mapping[str, VoicePrompt] = field(default_factory=dict)
    """None of Moshi, which has one voice and reads no prompts."""

    @property
    def reads_prompts(self) -> bool:
        """Whether a voice and a text tell it whom it is to be."""
        return bool(self.voices)


def is_moshi(config: Mapping[str, Any]) -> bool:
    """Return whether a folder with this `config.json` holds a model of Moshi's architecture."""
    return config.get("model_type") in (MOSHI, PERSONAPLEX) or "depformer_dim" in config


def load(folder: Path, device: torch.device, dtype: torch.dtype) -> MoshiCheckpoint:
    """Return the checkpoint in `folder`; its codec computes in float32. Raises `CheckpointError`."""
    raw = read_json(folder, "config.json")
    is_saved = _is_saved(raw)
    words = Words(int({**LANGUAGE, **raw}["existing_text_padding_id"]), _WORD_ENDS)
    if is_saved:
        network = _saved(folder, raw, dtype)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise CheckpointError(f"{folder} has no tokenizer.json, the tokenizer of its text.")
        tokenizer = read_json_tokenizer(path, words.silent)
    else:
        network = _published(folder, raw, dtype)
        tokenizer = read_sentencepiece(_named(folder, raw, "tokenizer_name", _TOKENIZER), words.silent)
    config = network.config
    if tokenizer.size > config.vocab_size + 1:
        raise CheckpointError(
            f"The tokenizer in {folder} has {tokenizer.size} tokens; the model has {config.vocab_size}."
        )
    model = MoshiModel(network.to(device), words)
    voices: Mapping[str, VoicePrompt] = {}
    if raw.get("model_type") == PERSONAPLEX:
        most = max(config.vocab_size, config.audio_vocab_size)
        voices = read_voices(folder, config.hidden_size, 1 + 2 * model.codes, most)
    return MoshiCheckpoint(model_name(folder), pack_linears(model.eval()), tokenizer, voices)


def read_config(folder: Path) -> MoshiConfig:
    """Return the architecture of the model in `folder`, without loading it. Raises `CheckpointError`."""
    raw = read_json(folder, "config.json")
    return _saved_config(folder, raw) if _is_saved(raw) else _Published(folder, raw).config


def weight_bytes(config: MoshiConfig, dtype: torch.dtype) -> dict[str, int]:
    """Return the bytes of the weights of a model once they are loaded, by part."""
    with torch.device("meta"):
        network = MoshiForConditionalGeneration(config)
    sizes = {
        name: sum(it.numel() for it in part.parameters()) + sum(it.numel() for it in part.buffers())
        for name, part in network.named_children()
    }
    return {name: size * (4 if name == "audio_encoder" else dtype.itemsize) for name, size in sizes.items()}


def _is_saved(raw: Mapping[str, Any]) -> bool:
    """Return whether transformers has written this `config.json`."""
    return "depth_decoder_config" in raw or "audio_encoder_config" in raw


# ----------------------------------------------------------------------------------- as transformers saves it


def _saved_config(folder: Path, raw: Mapping[str, Any]) -> MoshiConfig:
    codec = raw.get("audio_encoder_config")
    kind = codec.get("model_type", "mimi") if isinstance(codec, dict) else None
    if kind != "mimi":
        raise CheckpointError(
            f"{folder / 'config.json'} names the codec {kind!r} (audio_encoder_config); only mimi is served."
        )
    try:
        return MoshiConfig(**{name: value for name, value in raw.items() if name != "architectures"})
    except Exception as error:  # transformers checks types with exceptions of several kinds
        raise CheckpointError(f"{folder / 'config.json'} describes no Moshi: {_line(error)}") from None


def _saved(folder: Path, raw: Mapping[str, Any], dtype: torch.dtype) -> MoshiForConditionalGeneration:
    config = _saved_config(folder, raw)
    try:
        network, report = MoshiForConditionalGeneration.from_pretrained(
            folder, config=config, dtype=dtype, local_files_only=True, use_safetensors=True,
            output_loading_info=True,
        )  # fmt: skip
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"{folder} cannot be loaded as {MOSHI}: {_line(error)}") from None
    for which, problem in (
        ("missing_keys", "lacks tensors that the architecture needs"),
        ("unexpected_keys", "has tensors that the architecture has no place for"),
    ):
        if report[which]:
            raise CheckpointError(f"{folder} {problem}: {len(report[which])}, first {min(report[which])}.")
    network.audio_encoder.float()
    return network


# ----------------------------------------------------------------------------------- as it is published


class _Published:
    """The files of a published folder, opened and looked at."""

    def __init__(self, folder: Path, raw: Mapping[str, Any]) -> None:
        kind = raw.get("model_type", MOSHI)
        if kind not in (MOSHI, PERSONAPLEX):
            raise CheckpointError(
                f"{folder / 'config.json'} is of a model for {kind!r}; {MOSHI} and {PERSONAPLEX} are served."
            )
        self.language_path = _named(folder, raw, "moshi_name", "model.safetensors")
        self.codec_path = _named(folder, raw, "mimi_name", _CODEC)
        described = {}
        if raw.get("mimi_config_name"):
            described = read_json(folder, _named(folder, raw, "mimi_config_name", "").name)
        self.language_shapes = _shapes(self.language_path)
        self.codec_shapes = _shapes(self.codec_path)
        delays = [0, *[0, *[1] * (int(raw.get("n_q", LANGUAGE["n_q"])) // 2 - 1)] * 2]
        if raw.get("delays", delays) != delays:
            raise CheckpointError(f"{folder / 'config.json'} has delays other than {delays}.")
        if lacking := _CODEC_PARTS - {name.split(".")[0] for name in self.codec_shapes}:
            raise CheckpointError(f"{self.codec_path} holds no codec of the kind Mimi: no {min(lacking)}.")
        try:
            codec = codec_config(described)
            self.config = config_of(self.language_shapes, raw, codec)
        except CheckpointError as error:
            raise CheckpointError(f"{self.language_path} {error}.") from None
        except Exception as error:  # transformers checks values with exceptions of several kinds
            raise CheckpointError(f"{folder / 'config.json'} describes no Moshi: {_line(error)}") from None


_CODEC_PARTS: Final = {"encoder", "decoder", "encoder_transformer", "decoder_transformer", "quantizer"}


def _published(folder: Path, raw: Mapping[str, Any], dtype: torch.dtype) -> MoshiForConditionalGeneration:
    files = _Published(folder, raw)
    config = files.config
    with torch.device("meta"):
        network = MoshiForConditionalGeneration(config)
    # What is no weight would have no value: the codec is small, and nothing else of the network is used.
    network.audio_encoder = MimiModel(config.audio_encoder_config)
    for layer in network.decoder.model.layers:
        layer.self_attn.rotary_emb = None
    wanted = {name: [*tensor.shape] for name, tensor in network.state_dict().items()}
    found: dict[str, Tensor] = {}
    for path, shapes, number in (
        (files.language_path, files.language_shapes, dtype),
        (files.codec_path, files.codec_shapes, torch.float32),
    ):
        try:
            with safe_open(path, "pt") as file:

                def read(name: str, file: Any = file, number: torch.dtype = number) -> Tensor:
                    tensor: Tensor = file.get_tensor(name)
                    return tensor.to(number)

                names = list(shapes)
                if path == files.codec_path:
                    part = codec_tensors(names, read, config.audio_encoder_config)
                else:
                    part = language_tensors(names, read, config)
        except CheckpointError as error:
            raise CheckpointError(f"{path} {error}.") from None
        except (RuntimeError, ValueError) as error:
            raise CheckpointError(
                f"{path} has tensors of other shapes than a Moshi's: {_line(error)}"
            ) from None
        is_codec = path == files.codec_path
        _check(path, {n: s for n, s in wanted.items() if n.startswith("audio_encoder.") == is_codec}, part)
        found |= part
    network.load_state_dict(found, assign=True)
    return network.requires_grad_(False)


def _check(path: Path, wanted: Mapping[str, list[int]], found: Mapping[str, Tensor]) -> None:
    if missing := wanted.keys() - found.keys():
        raise CheckpointError(f"{path} lacks {len(missing)} tensors, first {min(missing)}.")
    if left := found.keys() - wanted.keys():
        raise CheckpointError(f"{path} has {len(left)} tensors without a place, first {min(left)}.")
    for name, shape in wanted.items():
        if [*found[name].shape] != shape:
            raise CheckpointError(f"{path}: {name} has the shape {[*found[name].shape]}, not {shape}.")


def _named(folder: Path, raw: Mapping[str, Any], field: str, usual: str) -> Path:
    """Return the file that `config.json` names, which must lie in the folder."""
    name = raw.get(field) or usual
    if not isinstance(name, str) or Path(name).name != name:
        raise CheckpointError(
            f"{folder / 'config.json'}: {field} must name a file of the folder, not {name!r}."
        )
    return folder / name


def _shapes(path: Path) -> dict[str, list[int]]:
    if not path.is_file():
        raise CheckpointError(f"{path.parent} has no {path.name}. Download the whole folder.")
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        raise CheckpointError(f"{path} is not a readable safetensors file.") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
