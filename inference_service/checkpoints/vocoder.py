"""Converted vocoders on disk: `config.json`, `model.safetensors`, two ONNX files and `voices/`.

They are made once from the published files, and the worker reads nothing else. Never pickle, never YAML.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from inference_service.checkpoints.files import read_json, read_tensors
from inference_service.kernels.packed_linear import pack_linears
from inference_service.models.errors import CheckpointError, listed
from inference_service.models.token2wav.config import (
    MELS,
    EncoderConfig,
    EstimatorConfig,
    Token2WavConfig,
    VocoderConfig,
)
from inference_service.models.token2wav.model import DEFAULT_STEPS, Token2Wav
from inference_service.models.token2wav.noise import SourceNoise, flow_noise

MODEL_TYPE = "token2wav"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
_LARGEST = 1 << 20

Part = TypeVar("Part", EncoderConfig, EstimatorConfig, VocoderConfig)


def load(
    folder: Path,
    device: torch.device,
    *,
    steps: int = DEFAULT_STEPS,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    reference_quirks: bool = False,
) -> Token2Wav:
    """Return the converted vocoder in `folder`, ready on `device`; for the options see `Token2Wav`.

    Raises `CheckpointError`.
    """
    if device.type == "cuda":
        # TF32, the default, blurs the pitch, whose errors add up in the phase of the excitation.
        torch.backends.cudnn.allow_tf32 = False
    config = read_vocoder_config(folder)
    tensors = read_tensors(folder)
    noise, source_noise = flow_noise(), SourceNoise.drawn(config.vocoder.harmonics)
    with torch.device("meta"):
        model = Token2Wav(
            config,
            steps=steps,
            dtype=dtype,
            cache_dtype=cache_dtype,
            reference_quirks=reference_quirks,
            noise=noise,
            source_noise=source_noise,
        )
    wanted = model.state_dict()
    check_tensors(wanted, tensors, folder / WEIGHTS)
    tensors = {name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()}
    model.load_state_dict(tensors, assign=True)
    return pack_linears(model.to(device).eval())


def require_fitting(folder: Path) -> None:
    """Compare the headers of a converted vocoder with its `config.json`; read no weights.

    Raises `CheckpointError`.
    """
    wanted, path = wanted_tensors(read_vocoder_config(folder)), folder / WEIGHTS
    if not path.is_file():
        raise CheckpointError(f"{folder} has no {WEIGHTS}. Convert the vocoder again.")
    try:
        with safe_open(path, "pt") as file:
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        raise CheckpointError(f"{path} is not a readable safetensors file.") from None
    found = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    check_tensors(wanted, found, path)


def read_vocoder_config(folder: Path) -> Token2WavConfig:
    """Return the typed `config.json` of a converted vocoder. Raises `CheckpointError`."""
    raw = read_json(folder, CONFIG)
    kind = raw.pop("model_type", None)
    if kind != MODEL_TYPE:
        raise CheckpointError(
            f"{folder / CONFIG}: model_type must be {MODEL_TYPE!r}, not {kind!r}. Make this folder with: "
            "antiphon convert-vocoder SRC DST"
        )
    path = folder / CONFIG
    try:
        config = Token2WavConfig(
            encoder=_part(EncoderConfig, raw.pop("encoder"), path),
            estimator=_part(EstimatorConfig, raw.pop("estimator"), path),
            vocoder=_part(VocoderConfig, raw.pop("vocoder"), path),
            speaker=_number(int, raw.pop("speaker"), "speaker", path),
            guidance=_number(float, raw.pop("guidance"), "guidance", path),
        )
    except KeyError as error:
        raise CheckpointError(f"{path} lacks {error}. Convert the vocoder again.") from None
    if raw:
        raise CheckpointError(f"{path} has {sorted(raw)[0]!r}, which is no field. Convert the vocoder again.")
    check_sizes(config, path)
    return config


def as_json(config: Token2WavConfig) -> dict[str, Any]:
    """Return the JSON that `read_vocoder_config` reads."""
    return {"model_type": MODEL_TYPE, **dataclasses.asdict(config)}


def check_sizes(config: Token2WavConfig, path: Path) -> None:
    """Raise `CheckpointError` if sizes contradict one another; `path` is their file."""
    encoder = config.encoder
    if encoder.width % (2 * encoder.heads):
        raise CheckpointError(
            f"{path}: the encoder's width must be a multiple of twice its heads, not {encoder.width} with "
            f"{encoder.heads} heads."
        )
    if config.vocoder.channels % 8:
        raise CheckpointError(f"{path}: HiFT needs a multiple of 8 channels, not {config.vocoder.channels}.")


def wanted_tensors(config: Token2WavConfig) -> dict[str, Tensor]:
    """Return the names, shapes and dtypes of the weights, on the device "meta"."""
    with torch.device("meta"):
        noise = SourceNoise(torch.zeros(1, config.vocoder.harmonics + 1), 1)
        model = Token2Wav(config, noise=torch.zeros(MELS, 0), source_noise=noise)
    return model.state_dict()


def check_tensors(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise `CheckpointError` that lists tensors that are missing, left over, or of another shape."""
    missing = sorted(set(wanted) - set(tensors))
    extra = sorted(set(tensors) - set(wanted))
    wrong = [
        f"{name} is {list(tensors[name].shape)} and not {list(tensor.shape)}"
        for name, tensor in wanted.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    problems = [f"lacks {len(missing)} tensors that the model needs ({listed(missing)})"] if missing else []
    if extra:
        problems.append(f"has {len(extra)} that it has no place for ({listed(extra)})")
    if wrong:
        problems.append(f"has {len(wrong)} of another shape ({listed(wrong)})")
    if problems:
        raise CheckpointError(f"{path} {' and '.join(problems)}. Take all files from one vocoder.")


def _part(kind: type[Part], raw: Any, path: Path) -> Part:
    fields = {field.name: type(field.default) for field in dataclasses.fields(kind)}
    if not isinstance(raw, dict) or set(raw) != set(fields):
        raise CheckpointError(f"{path}: {kind.__name__} needs the fields {', '.join(fields)}.")
    return kind(**{name: _number(fields[name], value, name, path) for name, value in raw.items()})


def _number(kind: type, value: Any, name: str, path: Path) -> Any:
    """Convert to the type of the configuration's field: a flag, a size of 1 or more, or a number."""
    if kind is bool:
        expected, fits = "true or false", isinstance(value, bool)
    elif kind is int:
        expected, fits = "a whole number of 1 or more", type(value) is int and 1 <= value <= _LARGEST
    else:
        expected, fits = "a number of 0 or more", type(value) in (int, float) and 0 <= value <= _LARGEST
    if not fits:
        raise CheckpointError(f"{path}: {name} must be {expected}, not {value!r}.")
    return kind(value)
