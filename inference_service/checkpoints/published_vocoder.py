"""The vocoder's published files: pickles, and YAML that names code. They are read as data, never run.

A folder has `flow.yaml` and `flow.pt`, `hift.pt`, and two ONNX files for voices. With a `config.yaml` beside
them `hift.pt` is the causal variant (`minicpmo-utils` 1.0.7). `hift_original.pt` is never read.
"""

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from inference_service.models.errors import CheckpointError
from inference_service.models.token2wav.config import (
    EncoderConfig,
    EstimatorConfig,
    Token2WavConfig,
    VocoderConfig,
)

FLOW_YAML, FLOW, VOCODER, CAUSAL_YAML = "flow.yaml", "flow.pt", "hift.pt", "config.yaml"

_MAX_YAML_BYTES = 65_536
_DEEPEST = 32
_NEW = "!new:"
_KNOWN_TAGS = (_NEW, "!name:", "!apply:", "!ref")
_REFERENCE = re.compile(r"<(\w+)>")

_FLOW_KINDS = {
    "flow": "cosyvoice2.flow.flow.CausalMaskedDiffWithXvec",
    "flow.encoder": "cosyvoice2.transformer.upsample_encoder_v2.UpsampleConformerEncoderV2",
    "flow.decoder": "cosyvoice2.flow.flow_matching.CausalConditionalCFM",
    "flow.decoder.estimator": "cosyvoice2.flow.decoder_dit.DiT",
}
_CAUSAL_KINDS = {
    "hift": "cosyvoice.hifigan.generator.CausalHiFTGenerator",
    "hift.f0_predictor": "cosyvoice.hifigan.f0_predictor.CausalConvRNNF0Predictor",
}
_FLOW_FIXED: dict[str, Any] = {
    "flow.output_size": 80,
    "flow.output_type": "mel",
    "flow.encoder.input_layer": "linear",
    "flow.encoder.pre_lookahead_len": 3,
    "flow.encoder.up_stride": 2,
    "flow.encoder.up_scale_factor": 2,
    "flow.encoder.pos_enc_layer_type": "rel_pos_espnet",
    "flow.encoder.selfattention_layer_type": "rel_selfattn",
    "flow.encoder.key_bias": True,
    "flow.encoder.normalize_before": True,
    "flow.encoder.activation_type": "swish",
    "flow.decoder.estimator.in_channels": 320,
    "flow.decoder.estimator.out_channels": 80,
}
"""Fixed values of the modules; a checkpoint with others has another architecture."""
_CAUSAL_FIXED: dict[str, Any] = {
    "hift.in_channels": 80,
    "hift.sampling_rate": 24_000,
    "hift.nsf_alpha": 0.1,
    "hift.nsf_sigma": 0.003,
    "hift.nsf_voiced_threshold": 10,
    "hift.upsample_rates": [8, 5, 3],
    "hift.upsample_kernel_sizes": [16, 11, 7],
    "hift.istft_params": {"n_fft": 16, "hop_len": 4},
    "hift.resblock_kernel_sizes": [3, 7, 11],
    "hift.resblock_dilation_sizes": [[1, 3, 5]] * 3,
    "hift.source_resblock_kernel_sizes": [7, 7, 11],
    "hift.source_resblock_dilation_sizes": [[1, 3, 5]] * 3,
    "hift.lrelu_slope": 0.1,
    "hift.audio_limit": 0.99,
    "hift.conv_pre_look_right": 4,
    "hift.f0_predictor.num_class": 1,
    "hift.f0_predictor.in_channels": 80,
}


@dataclass(frozen=True)
class TaggedNode:
    """A YAML node that names code; it is kept as data."""

    kind: str
    fields: dict[str, Any]


def read_config(folder: Path, vocoder: Mapping[str, Tensor]) -> Token2WavConfig:
    """Return the config from YAML; the sizes of HiFT come from its weights. Raises `CheckpointError`."""
    flow = _Section(folder / FLOW_YAML, _FLOW_KINDS, _FLOW_FIXED)
    is_causal = (folder / CAUSAL_YAML).is_file()
    if is_causal:
        _Section(folder / CAUSAL_YAML, _CAUSAL_KINDS, _CAUSAL_FIXED)
    width = flow.size("flow.encoder.output_size")
    flow.fix({"flow.input_size": width, "flow.encoder.input_size": width})
    return Token2WavConfig(
        encoder=EncoderConfig(
            vocabulary=flow.size("flow.vocab_size"),
            width=width,
            heads=flow.size("flow.encoder.attention_heads"),
            feed_forward=flow.size("flow.encoder.linear_units"),
            blocks=flow.size("flow.encoder.num_blocks"),
            up_blocks=flow.size("flow.encoder.num_up_blocks"),
        ),
        estimator=EstimatorConfig(
            width=flow.size("flow.decoder.estimator.hidden_size"),
            depth=flow.size("flow.decoder.estimator.depth"),
            heads=flow.size("flow.decoder.estimator.num_heads"),
            head_dim=flow.size("flow.decoder.estimator.head_dim"),
            mlp_ratio=flow.number("flow.decoder.estimator.mlp_ratio"),
        ),
        vocoder=VocoderConfig(
            channels=_rows(vocoder, "conv_pre.bias"),
            f0_channels=_rows(vocoder, "f0_predictor.condnet.0.bias"),
            harmonics=_columns(vocoder, "m_source.l_linear.weight") - 1,
            is_causal=is_causal,
        ),
        speaker=flow.size("flow.spk_embed_dim"),
        guidance=flow.number("flow.decoder.inference_cfg_rate"),
    )


def _rows(tensors: Mapping[str, Tensor], name: str) -> int:
    return _shape(tensors, name)[0]


def _columns(tensors: Mapping[str, Tensor], name: str) -> int:
    return _shape(tensors, name)[-1]


def _shape(tensors: Mapping[str, Tensor], name: str) -> list[int]:
    if name not in tensors or not tensors[name].dim():
        raise CheckpointError(f"{VOCODER} has no {name}. Is it the vocoder of MiniCPM-o 4.5?")
    return list(tensors[name].shape)


# ---------------------------------------------------------------------- YAML


class _Section:
    """Fields of a YAML file by their dotted paths, with their expected classes."""

    def __init__(self, path: Path, kinds: dict[str, str], fixed: dict[str, Any]) -> None:
        self._path = path
        self._fields: dict[str, Any] = {}
        root = read_yaml(path)
        for name in kinds:
            if "." not in name:
                self._flatten(name, root.get(name), kinds)
        missing = [name for name in kinds if name not in self._fields]
        if missing:
            raise CheckpointError(f"{path} has no {missing[0]} of the class {kinds[missing[0]]}.")
        self.fix(fixed)

    def _flatten(self, name: str, value: Any, kinds: dict[str, str]) -> None:
        if name in kinds:
            if not isinstance(value, TaggedNode) or value.kind != kinds[name]:
                kind = value.kind if isinstance(value, TaggedNode) else "no class"
                raise CheckpointError(f"{self._path}: {name} must be {kinds[name]}, not {kind}.")
            self._fields[name] = value.kind
            for field, inner in value.fields.items():
                self._flatten(f"{name}.{field}", inner, kinds)
        else:
            self._fields[name] = value

    def fix(self, fixed: dict[str, Any]) -> None:
        """Refuse a field that has another value."""
        for name, value in fixed.items():
            if self._fields.get(name, value) != value:
                raise CheckpointError(
                    f"{self._path}: {name} must be {value!r}, not {self._fields[name]!r}. "
                    "This is another architecture than that of MiniCPM-o 4.5."
                )

    def size(self, name: str) -> int:
        """Return a whole number of 1 or more."""
        value = self._fields.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(f"{self._path}: {name} must be a whole number of 1 or more, not {value!r}.")
        return value

    def number(self, name: str) -> float:
        """Return a number of 0 or more."""
        value = self._fields.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1e6:
            raise CheckpointError(f"{self._path}: {name} must be a number of 0 or more, not {value!r}.")
        return float(value)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the file as plain data: a node that names code becomes `TaggedNode`, `!ref <name>` the value of
    `name`.

    Tags of other kinds are refused, as are aliases. Raises `CheckpointError`.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from None
    if len(raw) > _MAX_YAML_BYTES:
        raise CheckpointError(f"{path} has {len(raw)} bytes; at most {_MAX_YAML_BYTES} are expected.")
    try:
        _check_shape(raw, path)
        root = yaml.compose(raw, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise CheckpointError(f"{path} does not hold a mapping.")
        data = _plain(root, path)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError):
        raise CheckpointError(f"{path} is not valid YAML.") from None
    return {name: _resolved(value, data) for name, value in data.items()}


def _check_shape(raw: bytes, path: Path) -> None:
    """Refuse content that would make the parser slow, or its result larger than the file."""
    depth = 0
    for event in yaml.parse(raw, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > _DEEPEST:
            raise CheckpointError(f"{path} has aliases or deep nesting, which no published file has.")


_CONSTRUCTOR = yaml.constructor.SafeConstructor()
_STANDARD = "tag:yaml.org,2002:"
_SCALARS = tuple(_STANDARD + kind for kind in ("str", "int", "float", "bool", "null"))


@dataclass(frozen=True)
class _Reference:
    name: str


def _plain(node: yaml.Node, path: Path) -> Any:
    tag = str(node.tag)
    if isinstance(node, yaml.ScalarNode) and tag in _SCALARS:
        return _CONSTRUCTOR.construct_object(node)
    if isinstance(node, yaml.ScalarNode) and tag == "!ref":
        match = _REFERENCE.fullmatch(node.value)
        return _Reference(match[1]) if match else node.value
    if not tag.startswith(_KNOWN_TAGS) and tag not in (_STANDARD + "map", _STANDARD + "seq"):
        raise CheckpointError(f"{path} has the tag {tag!r}, which no published file has. It was not run.")
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, path) for item in node.value]
    fields = {}
    if isinstance(node, yaml.MappingNode):
        fields = {str(key.value): _plain(value, path) for key, value in node.value}
    return TaggedNode(tag.removeprefix(_NEW), fields) if tag.startswith("!") else fields


def _resolved(value: Any, root: dict[str, Any]) -> Any:
    match value:
        case _Reference(name):
            target = root.get(name)
            return target if isinstance(target, int | float | str) else None
        case TaggedNode(kind, fields):
            return TaggedNode(kind, {name: _resolved(field, root) for name, field in fields.items()})
        case dict():
            return {name: _resolved(field, root) for name, field in value.items()}
        case list():
            return [_resolved(item, root) for item in value]
    return value


# ---------------------------------------------------------------------- weights


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a `.pt` file, with PyTorch's reader, which runs no code. Raises
    `CheckpointError`.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}. Download the whole folder.") from None
    except pickle.UnpicklingError:
        raise CheckpointError(
            f"{path} holds more than tensors, or is damaged. It was not run; download it from its publisher."
        ) from None
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(f"{path} is not a readable .pt file: {error}") from None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items()
    ):
        raise CheckpointError(f"{path} must hold tensors by their names and nothing else.")
    return {name.removeprefix("generator."): tensor for name, tensor in state.items()}


def folded(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors with weight norms, in either naming, folded into weights in float64: g * v / |v|."""
    plain = dict(tensors)
    for magnitude, direction, weight in _norms(tensors):
        norm, vector = plain.pop(magnitude).double(), plain.pop(direction).double()
        length = vector.flatten(1).norm(dim=1).view(norm.shape)
        plain[weight] = norm * vector / length
    return plain


def _norms(tensors: Mapping[str, Tensor]) -> list[tuple[str, str, str]]:
    spellings = [
        (".parametrizations.weight.original0", ".parametrizations.weight.original1"),
        (".weight_g", ".weight_v"),
    ]
    found = []
    for name in tensors:
        for magnitude, direction in spellings:
            stem = name.removesuffix(magnitude)
            if stem != name and stem + direction in tensors:
                found.append((name, stem + direction, f"{stem}.weight"))
    return found
