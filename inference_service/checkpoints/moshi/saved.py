"""A folder as transformers saves it: `config.json`, safetensors and `tokenizer.json`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from transformers import MoshiConfig, MoshiForConditionalGeneration

from inference_service.checkpoints.files import read_json
from inference_service.checkpoints.moshi.headers import line, require, shapes_of, without_weights
from inference_service.checkpoints.moshi.tokenizer import MoshiTokenizer, read_json_tokenizer
from inference_service.models.errors import CheckpointError

_WEIGHTS: Final = "model.safetensors"
_INDEX: Final = f"{_WEIGHTS}.index.json"
_FLAT: Final = (
    (r"^audio_encoder\.(en|de)coder\.\1coder_seanet\.", r"audio_encoder.\1coder."),
    (r"^audio_encoder\.(en|de)coder\.\1coder_transformer\.", r"audio_encoder.\1coder_transformer."),
    (r"^audio_encoder\.encoder\.downsample\.", "audio_encoder.downsample."),
    (r"^audio_encoder\.decoder\.upsample\.", "audio_encoder.upsample."),
)
"""Names of the codec's tensors in the network and in files; transformers renames them in both directions."""


class Saved:
    """The files of a saved folder, whose headers have been read."""

    def __init__(self, folder: Path, raw: Mapping[str, Any]) -> None:
        """Read the headers; `raw` is `config.json`. Raises `CheckpointError` for files of another
        architecture.
        """
        self._folder = folder
        self.tokenizer_path = folder / "tokenizer.json"
        self.config = _config(folder, raw)
        path, shapes = _weights(folder)
        wanted = without_weights(self.config).state_dict()
        require(path, {_name_in(shapes, name): tensor for name, tensor in wanted.items()}, shapes)

    def tokenizer(self, silent: frozenset[int]) -> MoshiTokenizer:
        """Return the tokenizer; ids in `silent` have no text. Raises `CheckpointError`."""
        if not self.tokenizer_path.is_file():
            raise CheckpointError(f"{self._folder} has no tokenizer.json, the tokenizer of its text.")
        return read_json_tokenizer(self.tokenizer_path, silent)

    def network(self, dtype: torch.dtype) -> MoshiForConditionalGeneration:
        """Return the network with its weights in `dtype`, those of the codec in float32."""
        folder = self._folder
        try:
            network, report = MoshiForConditionalGeneration.from_pretrained(
                folder, config=self.config, dtype=dtype, local_files_only=True, use_safetensors=True,
                output_loading_info=True,
            )  # fmt: skip
        except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"{folder} cannot be loaded as moshi: {line(error)}") from None
        for which, problem in (
            ("missing_keys", "lacks tensors that the architecture needs"),
            ("unexpected_keys", "has tensors that the architecture has no place for"),
        ):
            if report[which]:
                raise CheckpointError(
                    f"{folder} {problem}: {len(report[which])}, first {min(report[which])}."
                )
        network.audio_encoder.float()
        return network


def _config(folder: Path, raw: Mapping[str, Any]) -> MoshiConfig:
    codec = raw.get("audio_encoder_config")
    kind = codec.get("model_type", "mimi") if isinstance(codec, dict) else None
    if kind != "mimi":
        raise CheckpointError(
            f"{folder / 'config.json'} names the codec {kind!r} (audio_encoder_config); only mimi is served."
        )
    try:
        return MoshiConfig(**{name: value for name, value in raw.items() if name != "architectures"})
    except Exception as error:  # transformers checks types with exceptions of several kinds
        raise CheckpointError(f"{folder / 'config.json'} describes no Moshi: {line(error)}") from None


def _weights(folder: Path) -> tuple[Path, dict[str, list[int]]]:
    """Return the file that identifies the weights, and the shapes of all tensors."""
    path = folder / _WEIGHTS
    if path.is_file() or not (folder / _INDEX).is_file():
        return path, shapes_of(path)
    names = read_json(folder, _INDEX).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(it, str) and Path(it).name == it for it in names.values()
    ):
        raise CheckpointError(f"{folder / _INDEX} names no files of the folder (weight_map).")
    shapes: dict[str, list[int]] = {}
    for name in sorted({*names.values()}):
        shapes |= shapes_of(folder / name)
    return folder / _INDEX, shapes


def _name_in(shapes: Mapping[str, list[int]], name: str) -> str:
    """Return the name that a tensor of the network has in the files."""
    if name in shapes:
        return name
    for pattern, flat in _FLAT:
        name = re.sub(pattern, flat, name)
    return name
