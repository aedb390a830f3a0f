"""A folder as Kyutai or NVIDIA publishes it.

`config.json`, the language model, the codec and the tokenizer, in files that `config.json` names or that have
their usual names.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import MimiModel, MoshiConfig, MoshiForConditionalGeneration

from inference_service.checkpoints.files import read_json
from inference_service.checkpoints.moshi.headers import (
    Shapes,
    line,
    refuse_others,
    require,
    shapes_of,
    without_weights,
)
from inference_service.checkpoints.moshi.kyutai import (
    LANGUAGE,
    Read,
    codec_config,
    codec_tensors,
    config_of,
    language_tensors,
)
from inference_service.checkpoints.moshi.tokenizer import MoshiTokenizer, read_sentencepiece
from inference_service.models.errors import CheckpointError

MOSHI: Final = "moshi"
PERSONAPLEX: Final = "personaplex"
_CODEC: Final = "tokenizer-e351c8d8-checkpoint125.safetensors"
_TOKENIZER: Final = "tokenizer_spm_32k_3.model"
_CODEC_PARTS: Final = {"encoder", "decoder", "encoder_transformer", "decoder_transformer", "quantizer"}


class Published:
    """The files of a published folder, whose headers have been read."""

    def __init__(self, folder: Path, raw: Mapping[str, Any]) -> None:
        """Read the headers; `raw` is `config.json`. Raises `CheckpointError` for files of another
        architecture.
        """
        kind = raw.get("model_type", MOSHI)
        if kind not in (MOSHI, PERSONAPLEX):
            raise CheckpointError(
                f"{folder / 'config.json'} is of a model for {kind!r}; {MOSHI} and {PERSONAPLEX} are served."
            )
        self.tokenizer_path = _named(folder, raw, "tokenizer_name", _TOKENIZER)
        self._language = _named(folder, raw, "moshi_name", "model.safetensors")
        self._codec = _named(folder, raw, "mimi_name", _CODEC)
        described = {}
        if raw.get("mimi_config_name"):
            described = read_json(folder, _named(folder, raw, "mimi_config_name", "").name)
        self._language_shapes = shapes_of(self._language)
        self._codec_shapes = shapes_of(self._codec)
        delays = [0, *[0, *[1] * (int(raw.get("n_q", LANGUAGE["n_q"])) // 2 - 1)] * 2]
        if raw.get("delays", delays) != delays:
            raise CheckpointError(f"{folder / 'config.json'} has delays other than {delays}.")
        if lacking := _CODEC_PARTS - {name.split(".")[0] for name in self._codec_shapes}:
            raise CheckpointError(f"{self._codec} holds no codec of the kind Mimi: no {min(lacking)}.")
        try:
            codec = codec_config(described)
            self.config: MoshiConfig = config_of(self._language_shapes, raw, codec)
        except CheckpointError as error:
            raise CheckpointError(f"{self._language} {error}.") from None
        except Exception as error:  # transformers checks values with exceptions of several kinds
            raise CheckpointError(f"{folder / 'config.json'} describes no Moshi: {line(error)}") from None
        self._network = without_weights(self.config)
        self._require_tensors()

    def _require_tensors(self) -> None:
        """Raise `CheckpointError` unless both files hold exactly the tensors of the network."""
        wanted = self._network.state_dict()
        parts = (
            (self._language, self._language_tensors(_shapes_of(self._language_shapes))),
            (self._codec, self._codec_tensors(_shapes_of(self._codec_shapes))),
        )
        for path, found in parts:
            is_codec = path == self._codec
            own = {name: it for name, it in wanted.items() if name.startswith("audio_encoder.") == is_codec}
            require(path, own, {name: [*tensor.shape] for name, tensor in found.items()})
            refuse_others(path, own, found)

    def tokenizer(self, silent: frozenset[int]) -> MoshiTokenizer:
        """Return the tokenizer; ids in `silent` have no text. Raises `CheckpointError`."""
        return read_sentencepiece(self.tokenizer_path, silent)

    def network(self, dtype: torch.dtype) -> MoshiForConditionalGeneration:
        """Return the network with its weights in `dtype`, those of the codec in float32."""
        network = self._network
        # No file has the buffers. The codec is small enough to be made anew; other buffers are not used.
        network.audio_encoder = MimiModel(self.config.audio_encoder_config)
        for layer in network.decoder.model.layers:
            layer.self_attn.rotary_emb = None
        with safe_open(self._language, "pt") as file:
            found = self._language_tensors(lambda name: file.get_tensor(name).to(dtype))
        with safe_open(self._codec, "pt") as file:
            found |= self._codec_tensors(lambda name: file.get_tensor(name).float())
        network.load_state_dict(found, assign=True)
        return network.requires_grad_(False)

    def _language_tensors(self, read: Read) -> dict[str, Tensor]:
        try:
            return language_tensors([*self._language_shapes], read, self.config)
        except CheckpointError as error:
            raise CheckpointError(f"{self._language} {error}.") from None
        except (RuntimeError, ValueError) as error:
            raise _of_other_shapes(self._language, error) from None

    def _codec_tensors(self, read: Read) -> dict[str, Tensor]:
        try:
            return codec_tensors([*self._codec_shapes], read, self.config.audio_encoder_config)
        except (RuntimeError, ValueError) as error:
            raise _of_other_shapes(self._codec, error) from None


def _of_other_shapes(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} has tensors of other shapes than a Moshi's: {line(error)}")


def _shapes_of(shapes: Shapes) -> Read:
    """Return a reader of tensors with shapes but without values."""
    return lambda name: torch.empty(shapes[name], device="meta")


def _named(folder: Path, raw: Mapping[str, Any], field: str, usual: str) -> Path:
    """Return the file that `config.json` states, which must lie in the folder."""
    name = raw.get(field) or usual
    if not isinstance(name, str) or Path(name).name != name:
        raise CheckpointError(
            f"{folder / 'config.json'}: {field} must name a file of the folder, not {name!r}."
        )
    return folder / name
